"""Notices loops that train on all rows of a dataset, on each rank.

Ranks need no exchange for that: each tells hvdrun a checksum of the rows, which
counts if all of them tell the same.
"""

from __future__ import annotations

import importlib
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from hvd_keras._common import remarks, training_signs, user_code
from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.replacements import replace
from hvd_keras._job import last_words, state
from hvd_keras._values import row_samples
from hvd_keras.process_set import has_own_sets

_LIBRARIES = ("hvd_keras.", "keras.", "tensorflow.", "torch.")
_MOST = 8  # datasets that are looked at
_num_seen = 0
# What is iterated over: the data, its batches, the steps before, the line.
_running: tuple[Any, int, int, str] | None = None


def watch_tensorflow() -> None:
    """Looks at loops over datasets of tf.data."""
    tf = importlib.import_module("tensorflow")
    replace(tf.data.Dataset, "__iter__", _noting)
    last_words.at_end.append(_finish)


def watch_torch() -> None:
    """Looks at loops over DataLoaders of torch."""
    data = importlib.import_module("torch.utils.data")
    replace(data.DataLoader, "__iter__", _noting)
    last_words.at_end.append(_finish)


def _noting(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @as_it_is
    def __iter__(self: Any) -> Iterator[Any]:  # noqa: N807
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if not (training_signs.place_of_fit or caller.startswith(_LIBRARIES)):
            _begin(self)
        made: Iterator[Any] = original(self)
        return made

    return __iter__


def _begin(data: Any) -> None:
    global _running, _num_seen
    job = state.job()
    if job is None or job.topology.size == 1:
        return
    _finish(job)
    if _num_seen < _MOST and not hasattr(data, "_hvd_seen_whole"):
        num_batches = _num_batches_of(data)
        if num_batches > 1:
            place = user_code.place()
            _running = data, num_batches, last_words.num_steps(), place


def _finish(job: state.Job) -> None:
    """Looks at what was iterated over before, if it was trained on."""
    global _running, _num_seen
    if _running is None:
        return
    (data, num_batches, num_before, place), _running = _running, None
    # A set of ranks may train on all rows.
    if has_own_sets() or last_words.num_steps() - num_before < num_batches:
        return
    data._hvd_seen_whole = True
    _num_seen += 1
    sample = row_samples.sample_of([], data)
    if sample is None:
        return
    text = (
        "Each rank has trained on all rows: deal them out by `hvd.shard`, "
        f"so that an epoch has each row once. Received: {num_batches} batches "
        f"of the same data on all ranks, in the loop at {place}."
    )
    number = zlib.crc32(repr(sample[:2]).encode())
    about = f"{remarks.SAME_DATA} {number:08x}"
    remarks.keep(text, about, fewest=job.topology.size)


def _num_batches_of(data: Any) -> int:
    """Returns how many batches an iteration has; 0 if nobody knows."""
    cardinality = getattr(data, "cardinality", None)
    try:
        return max(0, int(cardinality() if cardinality else len(data)))
    except Exception:  # such as a loader of an iterable, or inside a graph
        return 0
