"""Compares the first values of what the ranks train, where they may differ yet.

Programs in Horovod's form may broadcast them after their first step.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from hvd_keras import _native
from hvd_keras._common import log, training_signs, user_code
from hvd_keras._job import membership
from hvd_keras._values import agreement, checksums
from hvd_keras.exceptions import HvdError
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Max

_SECONDS = 10.0  # between two looks
_STEPS = 4  # of the engine, which sees a step of each optimizer or tape
_END = 1 << 32  # of checksums


class Value(NamedTuple):
    """A first value of this rank.

    Attributes:
        label: Its name, for messages.
        checksum: None: it has none yet.
        num_bytes: Its size.
    """

    label: str
    checksum: int | None
    num_bytes: int

    @classmethod
    def of(cls, label: str, value: np.ndarray[Any, Any] | None) -> Value:
        """Describes an array in host memory."""
        if value is None:
            return cls(label, None, 0)
        return cls(label, checksums.checksum(value), value.nbytes)


class Found(NamedTuple):
    """What all ranks know of their values, after they have compared them.

    Attributes:
        difference: Names the first that differs, and the ranks; None: none.
        num_bytes: The size of all that differ.
        are_known: Whether all ranks had all values.
    """

    difference: str | None
    num_bytes: int
    are_known: bool


def are_compared(process_set: ProcessSet) -> bool:
    """Whether this rank compares first values with others.

    Not in an elastic job: there `elastic.State` broadcasts, and the ranks may
    trace their steps at other times.
    """
    has_others = process_set.included() and process_set.size() != 1
    return bool(has_others) and not membership.is_elastic()


def compare(
    name: str, values: Sequence[Value], process_set: ProcessSet
) -> Found:
    """Compares values over the ranks; one that has joined changes nothing.

    Args:
        name: Pairs the call across ranks.
        values: The values, as many on all ranks.
        process_set: The ranks that compare; this rank is one of them.
    """
    sums = [each.checksum for each in values]
    # The largest is 0 where no rank knows a value, or all have joined.
    bounds = np.zeros((2, len(sums) + 1), np.int64)
    bounds[0, -1] = None in sums
    for i, each in enumerate(sums):
        if each is not None:
            bounds[:, i] = each + 1, _END - each
    (largest,) = _native.core().allreduce(
        name, [bounds], int(Max), process_set_id=process_set.process_set_id
    )
    are_known = not largest[0, -1]
    spread = largest[:, :-1].sum(axis=0)
    differs = np.flatnonzero(spread > _END + 1).tolist()
    if not differs:
        return Found(None, 0, are_known)
    known = [
        (values[i].label, sums[i] if sums[i] is not None else -1)
        for i in differs
    ]
    (text,) = agreement.together(
        f"{name}/differing", [checksums.comparing(known, process_set)]
    )
    num_bytes = sum(values[i].num_bytes for i in differs)
    return Found(text, num_bytes, are_known)


def note(
    found: Found,
    cure: str,
    process_set: ProcessSet,
    *,
    were_apart: bool = False,
    num_moved: int = 0,
) -> None:
    """Lets the user hear of a difference, unless the ranks broadcast yet.

    Args:
        found: What `compare` has found.
        cure: How to broadcast.
        process_set: The ranks that have compared.
        were_apart: Whether these values differed the last time.
        num_moved: The bytes that were broadcast from the time when this rank
            had the values until they were compared.
    """
    if found.difference is None:
        if were_apart:  # the program has made them equal by other ways
            training_signs.apart = None
        return
    if num_moved >= found.num_bytes:
        return
    core, place = _native.core(), user_code.place()
    at = f" at {place}" if place else ""
    training_signs.apart = apart = training_signs.Apart(
        "The ranks train different weights: they began with other values, and "
        f"equal gradients keep them apart. {cure} before the first step. "
        f"Received: {found.difference}{at}.",
        core.num_broadcast_bytes() + found.num_bytes - num_moved,
    )
    if [core.rank()] == (process_set.ranks or [])[:1]:
        _look_later(apart, core.stats()["num_steps"] + _STEPS)


def _look_later(apart: training_signs.Apart, step: int) -> None:
    timer = threading.Timer(_SECONDS, _look, [apart, step])
    timer.daemon = True
    timer.start()


def _look(apart: training_signs.Apart, step: int) -> None:
    """Warns if nothing was broadcast before a step of the engine."""
    with contextlib.suppress(HvdError):  # the job has ended
        training_signs.note_broadcast(_native.core().num_broadcast_bytes())
        if training_signs.apart is not apart:
            return
        if _native.core().stats()["num_steps"] < step:
            _look_later(apart, step)
        else:
            log.warning(apart.text)
