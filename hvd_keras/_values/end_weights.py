"""Tells hvdrun some weights at the end of a job, which must be equal.

It compares those of all ranks; the ranks need no exchange.
"""

from __future__ import annotations

import contextlib
import json
import sys
import zlib
from typing import Any

import numpy as np

from hvd_keras._common import remarks, training_signs
from hvd_keras._job import last_words, state
from hvd_keras.process_set import has_own_sets

_MOST = 64  # numbers that are told, and arrays that they are of
_MOST_CHANGES = 50
_MOST_BYTES = 1 << 20  # of an array that is read as a whole


_num_changes = 0
# After how many updates they were taken; what they are of, and the numbers.
_taken: tuple[int, str, list[float]] | None = None


def watch() -> None:
    """Tells them at the end of this process.

    What one rank does behind the last step, such as to load its best weights
    and evaluate them alone, is its own affair.
    """
    if _tell not in last_words.at_end:
        last_words.at_end.append(_tell)
        training_signs.before_change.append(_take_before_change)


def are_told(job: state.Job) -> bool:
    """Whether the ranks of a job should end with equal weights."""
    # A rank may leave an elastic job before the others end.
    if job.topology.size == 1 or has_own_sets() or job.config.elastic:
        return False
    return not hasattr(sys, "last_value")  # else it fails


def _tell(job: state.Job) -> None:
    if not are_told(job):
        return
    with contextlib.suppress(Exception):  # a library may be gone by now
        _take()
    if _taken is None or not _taken[0]:  # else others tell of it
        return
    _, names, numbers = _taken
    training = training_signs.first or training_signs.gradient
    at = f" at {training.place}" if training and training.place else ""
    number = zlib.crc32(f"{names} {len(numbers)}".encode())
    text = (
        "The ranks have ended with different weights. "
        f"{_cure_of_first_values()}, and let all ranks make the same updates: "
        "by optimizers that are distributed, at the same rates. "
        f"Received: of what {names} has trained{at}"
    )
    about = f"{remarks.TRAINS_ALONE} {number:08x}"
    remarks.keep(text, about, value=json.dumps(numbers))


def _take_before_change() -> None:
    global _num_changes
    if _num_changes == _MOST_CHANGES:  # a loop sets weights in each step
        return
    before = _taken
    with contextlib.suppress(Exception):  # such as inside a graph
        _take()
    _num_changes += _taken is not before


def _take() -> None:
    """Takes some numbers, unless it has done so since the last step."""
    global _taken
    num_updates = last_words.num_updates()
    if _taken is not None and _taken[0] == num_updates:
        return
    names, arrays = list[str](), list[Any]()
    for _, name, refs in training_signs.optimizers:
        alive = [one for ref in refs if (one := ref()) is not None]
        names += [name] if alive else []
        arrays += [getattr(one, "value", one) for one in alive]
    counts = {name: names.count(name) for name in names}
    told = [f"each of {n} {name}" if n > 1 else name
            for name, n in counts.items()]  # fmt: skip
    _taken = num_updates, ", ".join(told), some_of(arrays)


def _cure_of_first_values() -> str:
    """Says what broadcasts them, in what the program has imported."""
    if "keras" in sys.modules:
        return "Broadcast the first values by `hvd.broadcast_variables`"
    if "torch" in sys.modules:
        return "Broadcast the first values by `hvd.broadcast_parameters`"
    return "Broadcast the first values"


def some_of(arrays: list[Any]) -> list[float]:
    """Returns some numbers of arrays, the same places on all ranks."""
    chosen = [_some(one) for one in arrays[:: -(-len(arrays) // _MOST) or 1]]
    each = _MOST // max(1, len(chosen))
    return [
        float(number)
        for some in chosen
        for number in some[:: max(1, len(some) // each)][:each]
    ]


def _some(array: Any) -> Any:
    """Returns an array, or a part in the middle of a large one, flat."""
    size = array.dtype.itemsize if hasattr(array.dtype, "itemsize") else 4
    while len(array.shape) > 1 and np.prod(array.shape) * size > _MOST_BYTES:
        array = array[int(array.shape[0]) // 2]
    if hasattr(array, "detach"):  # of torch
        array = array.detach().cpu()
    return np.asarray(array, np.float64).reshape(-1)
