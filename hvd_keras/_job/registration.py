"""Makes a process set on all ranks together, or on none.

Every rank tells the others what it wants. Members map the memory that their
lowest rank has made. Then every rank hears how it went on the others. The ranks
do this by allgathers over the global set, one line of JSON from each.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hvd_keras import _native
from hvd_keras._job.bootstrap.client import error_class
from hvd_keras.exceptions import (
    HvdError,
    InternalError,
    ProcessSetMismatchError,
)

_EXCHANGE = "hvd_keras.process_sets"  # a name that no user's tensor has

Segment = tuple[int, int, bytes]  # see startup.py
Answers = list[dict[str, Any]]  # what each rank has told, by rank


class Segments:
    """Shared memory that this rank has made, by index of the set."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int, str] | None] = []

    def make(self, sets: Sequence[list[int]], rank: int) -> None:
        """Makes the memory of the sets whose lowest rank is `rank`."""
        for ranks in sets:
            if len(ranks) > 1 and ranks[0] == rank:
                fd, token = _native.core().create_segment(len(ranks))
                self.made.append((os.getpid(), fd, token.hex()))
            else:
                self.made.append(None)


@contextlib.contextmanager
def open_segments() -> Iterator[Segments]:
    """Closes the memory at the end: by then all who will map it have."""
    segments = Segments()
    try:
        yield segments
    finally:
        for segment in segments.made:
            if segment is not None:
                os.close(segment[1])


def exchange(call: str, failure: Exception | None, **facts: Any) -> Answers:
    """Tells all ranks what this one does, and returns what each one does.

    Raises:
        ProcessSetMismatchError: `call` is not the same on all ranks.
        Exception: `failure`, after all have heard of it. Or another rank failed
            with an error of this class.
    """
    import numpy as np

    error = None
    if failure is not None:
        error = [type(failure).__name__, str(failure)]
    line = json.dumps({"call": call, "error": error, **facts}) + "\n"
    mine = np.frombuffer(line.encode(), np.uint8)
    (lines,) = _native.core().allgather(_EXCHANGE, [mine])
    answers = [json.loads(one) for one in lines.tobytes().splitlines()]
    if failure is not None:
        if isinstance(failure, (HvdError, NotImplementedError)):
            raise failure
        raise InternalError(f"A process set failed: {failure}") from failure
    for rank, answer in enumerate(answers):
        if answer["error"] is not None:
            name, message = answer["error"]
            raise error_class(name)(f"Rank {rank} failed: {message}")
    _check_calls([answer["call"] for answer in answers])
    return answers


def add_to_core(
    rank: int, sets: Mapping[int, list[int]], answers: Answers
) -> None:
    """Registers sets with the core of every rank, or of none.

    Args:
        rank: This rank.
        sets: The ranks of each new set, by its id. The order is that of the
            segments in `answers`.
        answers: The answers of `exchange`, which hold the segments.
    """
    core = _native.core()
    added = []
    failure: Exception | None = None
    try:
        for index, (new_id, ranks) in enumerate(sets.items()):
            segment: Segment | None = None
            if rank in ranks and len(ranks) > 1:
                pid, fd, token = answers[ranks[0]]["segments"][index]
                segment = (pid, fd, bytes.fromhex(token))
            core.add_process_set(new_id, ranks, segment)
            added.append(new_id)
    except Exception as error:
        failure = error
    try:
        exchange("", failure)
    except BaseException:
        remove_from_core(added)
        raise


def remove_from_core(ids: Iterable[int]) -> None:
    """Unregisters sets from the core of this rank."""
    for one in ids:
        with contextlib.suppress(HvdError):  # shutdown() was faster
            _native.core().remove_process_set(one)


def _check_calls(calls: list[str]) -> None:
    for rank, call in enumerate(calls):
        if call != calls[0]:
            raise ProcessSetMismatchError(
                "All ranks must add and remove the same process sets. "
                f"Received: {calls[0]} on rank 0, {call} on rank {rank}."
            )
