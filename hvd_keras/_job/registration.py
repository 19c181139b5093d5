"""Makes a process set on all ranks together, or on none.

Every rank tells the others what it wants. Members map the memory that their
lowest rank has made. Then every rank hears how it went on the others. The ranks
do this by allgathers over the global set, one line of JSON from each.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hvd_keras import _native
from hvd_keras._job import startup
from hvd_keras._job.hosts.layout import Layout
from hvd_keras._rendezvous.errors import error_class
from hvd_keras.exceptions import (
    HvdError,
    InternalError,
    ProcessSetMismatchError,
)

_EXCHANGE = "hvd_keras.process_sets"  # a name that no user's tensor has

Segment = tuple[int, int, bytes]  # see startup.py
Answers = list[dict[str, Any]]  # what each rank has told, by rank


class Segments:
    """What this rank has made for new sets, by index of the set.

    Attributes:
        made: Memory for the ranks of this host; None: another rank made it.
        links: Where this rank listens to the leaders of other hosts; None: it
            does not.
    """

    def __init__(self) -> None:
        self.made: list[tuple[int, int, str] | None] = []
        self.links: list[str | None] = []
        self.listeners: list[socket.socket | None] = []

    def make(self, sets: Sequence[list[int]], rank: int) -> None:
        """Makes the memory of the sets that `rank` leads on its host."""
        for ranks in sets:
            layout = _layout_of(ranks)
            local = ranks if layout is None else _local_ranks(layout, ranks)
            segment = listener = link = None
            if len(ranks) > 1 and local[:1] == [rank]:
                fd, token = _native.core().create_segment(
                    len(local), has_wire=layout is not None
                )
                segment = (os.getpid(), fd, token.hex())
            if layout is not None and layout.rank == 0:
                network = startup.network()
                assert network is not None
                listener, link = network.listen(layout.num_hosts)
            self.made.append(segment)
            self.links.append(link)
            self.listeners.append(listener)


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
        for listener in segments.listeners:
            if listener is not None:
                listener.close()


def _layout_of(ranks: Sequence[int]) -> Layout | None:
    network = startup.network()
    return None if network is None else network.layout_of(ranks)


def is_on_several_hosts(ranks: Sequence[int]) -> bool:
    """Whether ranks of the job are on several hosts; all ranks say the same."""
    return _layout_of(ranks) is not None


def _local_ranks(layout: Layout, ranks: Sequence[int]) -> list[int]:
    """Returns the ranks, in the job, of a set's members on this host."""
    if layout.host < 0:
        return []
    return [ranks[one] for one in layout.local_ranks]


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
    rank: int,
    sets: Mapping[int, list[int]],
    answers: Answers,
    segments: Segments,
) -> None:
    """Registers sets with the core of every rank, or of none.

    Args:
        rank: This rank.
        sets: The ranks of each new set, by its id. The order is that of the
            segments in `answers`.
        answers: The answers of `exchange`, which hold the segments.
        segments: What this rank has made.
    """
    added = []
    failure: Exception | None = None
    try:
        for index, (new_id, ranks) in enumerate(sets.items()):
            layout = _layout_of(ranks)
            if layout is None:
                _add_on_one_host(rank, new_id, ranks, index, answers)
            else:
                listener = segments.listeners[index]
                _add(layout, new_id, ranks, index, answers, listener)
            added.append(new_id)
    except Exception as error:
        failure = error
    try:
        exchange("", failure)
    except BaseException:
        remove_from_core(added)
        raise


def _add_on_one_host(
    rank: int, new_id: int, ranks: list[int], index: int, answers: Answers
) -> None:
    segment: Segment | None = None
    if rank in ranks and len(ranks) > 1:
        segment = _segment_of(answers[ranks[0]], index)
    _native.core().add_process_set(new_id, ranks, segment)


def _add(
    layout: Layout,
    new_id: int,
    ranks: list[int],
    index: int,
    answers: Answers,
    listener: socket.socket | None,
) -> None:
    network = startup.network()
    assert network is not None
    segment: Segment | None = None
    hosts: Any = None
    local = _local_ranks(layout, ranks)
    if local:
        segment = _segment_of(answers[local[0]], index)
        network.open_set(new_id, layout, segment)
    if layout.rank >= 0:
        leaders = [ranks[leader] for leader in layout.leaders]
        pids = [answers[one]["segments"][index][0] for one in leaders]
        link = answers[ranks[0]]["links"][index]
        hosts = network.connect(
            layout,
            leaders,
            pids,
            listener,
            link,
            check=_native.core().check_peers,
        )
    else:
        segment = None
    _native.core().add_process_set(new_id, ranks, segment, hosts)


def _segment_of(answer: Mapping[str, Any], index: int) -> Segment:
    pid, fd, token = answer["segments"][index]
    return pid, fd, bytes.fromhex(token)


def remove_one(set_id: int) -> None:
    """Unregisters a set from the core of this rank."""
    _native.core().remove_process_set(set_id)
    network = startup.network()
    if network is not None:
        network.close_set(set_id)


def remove_from_core(ids: Iterable[int]) -> None:
    """Unregisters sets from the core of this rank, as far as they are there."""
    for one in ids:
        with contextlib.suppress(HvdError):  # shutdown() was faster
            remove_one(one)


def _check_calls(calls: list[str]) -> None:
    for rank, call in enumerate(calls):
        if call != calls[0]:
            raise ProcessSetMismatchError(
                "All ranks must add and remove the same process sets. "
                f"Received: {calls[0]} on rank 0, {call} on rank {rank}."
            )
