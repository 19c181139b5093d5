"""Notices loops that train on all rows of a dataset, on each rank.

Ranks need no exchange for that: each tells hvdrun a checksum of the rows, which
counts if all of them tell the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hvd_keras._common import remarks, training_signs, user_code
from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.replacements import replace
from hvd_keras._job import last_words, state
from hvd_keras._values import row_samples
from hvd_keras._values.arrays_behind import is_ours
from hvd_keras.process_set import has_own_sets

_LIBRARIES = ("hvd_keras.", "keras.", "tensorflow.", "torch.")
_MOST = 8  # datasets that are looked at
_num_seen = 0


@dataclasses.dataclass
class _Loop:
    """An iteration over data.

    Attributes:
        num_batches: That it has.
        num_before: Steps that were taken before.
        place: The line that has begun it.
        num_steps: Steps that were taken by its end; None: it may still run.
    """

    data: Any
    num_batches: int
    num_before: int
    place: str
    num_steps: int | None = None

    def end(self) -> None:
        """Notes that nobody holds its iterator any more."""
        self.num_steps = last_words.num_steps()
        if not self.has_trained():
            self.data = None  # it may be large

    def has_trained(self) -> bool:
        """Whether there was a step for each batch, when it had ended."""
        num_steps = self.num_steps or 0
        return num_steps - self.num_before >= self.num_batches


_running: _Loop | None = None  # or has ended last


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
        loop = None
        if not (training_signs.place_of_fit or caller.startswith(_LIBRARIES)):
            loop = _begin(self)
        made: Iterator[Any] = original(self)
        if loop is not None:  # what trains behind it is no part of it
            with contextlib.suppress(TypeError):  # some cannot be watched
                weakref.finalize(made, loop.end).atexit = False
        return made

    return __iter__


def _begin(data: Any) -> _Loop | None:
    global _running, _num_seen
    job = state.job()
    if job is None or job.topology.size == 1:
        return None
    _finish(job)
    is_known = is_ours(data) or hasattr(data, "_hvd_seen_whole")
    if is_known or _num_seen == _MOST:
        return None
    num_batches = _num_batches_of(data)
    if num_batches < 2:
        return None
    num_before, place = last_words.num_steps(), user_code.place()
    _running = _Loop(data, num_batches, num_before, place)
    return _running


def _finish(job: state.Job) -> None:
    """Looks at what was iterated over before, if it was trained on."""
    global _running, _num_seen
    if _running is None:
        return
    loop, _running = _running, None
    if loop.num_steps is None:
        loop.end()
    # A set of ranks may train on all rows.
    if has_own_sets() or not loop.has_trained():
        return
    loop.data._hvd_seen_whole = True
    _num_seen += 1
    if _is_dealt(loop.data, job):
        _tell_of_dealt(loop)
        return
    sample = row_samples.sample_of([], loop.data)
    if sample is None:
        return
    text = (
        "Each rank has trained on all rows: "
        f"{training_signs.cure_of_whole_data()}, so that an epoch has each row "
        f"once. Received: {loop.num_batches} batches of the same data on all "
        f"ranks, in the loop at {loop.place}."
    )
    number = zlib.crc32(repr(sample[:2]).encode())
    about = f"{remarks.SAME_DATA} {number:08x}"
    remarks.keep(text, about, fewest=job.topology.size)


def _is_dealt(data: Any, job: state.Job) -> bool:
    """Whether a sampler of torch deals the rows out among all ranks."""
    torch = sys.modules.get("torch")
    sampler = getattr(data, "sampler", None)
    return (
        torch is not None
        and isinstance(sampler, torch.utils.data.DistributedSampler)
        and sampler.num_replicas == job.topology.size
    )


def _tell_of_dealt(loop: _Loop) -> None:
    """Tells hvdrun what is dealt out, which must be the same on all ranks."""
    text = (
        "`DistributedSampler` must deal out the same dataset on all ranks, "
        "with all rows. Otherwise rows are left out, and ranks train on what "
        "others hold out. Draw and split with a seed that is the same on all "
        "ranks, such as `random_split(data, lengths, "
        "torch.Generator().manual_seed(1))`, and take no share before. "
        f"Received: in the loop at {loop.place}"
    )
    about = f"{remarks.OTHER_ROWS} {loop.place}"
    remarks.keep(text, about, value=json.dumps([_told_of(loop.data.dataset)]))


def _told_of(dataset: Any) -> str:
    """Returns a checksum, and words, of a dataset of torch; "": unknown."""
    loaders = sys.modules["torch"].utils.data
    words, number = f"{len(dataset)} rows", 0
    try:
        while isinstance(dataset, loaders.Subset):
            indices = np.asarray(dataset.indices, np.int64)
            words += f", numbers {', '.join(map(str, indices[:3]))}, ..."
            number = zlib.crc32(indices.tobytes(), number)
            dataset = dataset.dataset
        if isinstance(dataset, loaders.TensorDataset):
            sample = row_samples.sample_of(dataset.tensors)
            number = zlib.crc32(repr(sample and sample[2]).encode(), number)
            first = dataset.tensors[0][:1].flatten()[:3].tolist()
            words += f", the first one {', '.join(f'{n:.4g}' for n in first)}"
    except Exception:  # of a user's class; advice must not end the training
        return ""
    return f"{zlib.crc32(words.encode(), number):08x} {words}"


def _num_batches_of(data: Any) -> int:
    """Returns how many batches an iteration has; 0 if nobody knows."""
    cardinality = getattr(data, "cardinality", None)
    try:
        return max(0, int(cardinality() if cardinality else len(data)))
    except Exception:  # such as a loader of an iterable, or inside a graph
        return 0
