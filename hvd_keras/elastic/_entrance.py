"""Decides with all ranks of a new membership from which state they go on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from hvd_keras import _native, basics, objects
from hvd_keras._common import log
from hvd_keras._job import state
from hvd_keras.callbacks._background import claim
from hvd_keras.callbacks._rank_zero import on_rank_zero
from hvd_keras.elastic._commit_files import CommitFiles
from hvd_keras.elastic._commits import Commit, Commits, Number
from hvd_keras.exceptions import StalledError

_CHUNK_BYTES = 1 << 28
_Result = TypeVar("_Result")


@dataclasses.dataclass(frozen=True)
class Entry:
    """From where a rank goes on.

    Args:
        commit: The state; None: the one that the program has made.
        is_own: Whether the state is this rank's own.
        stream: The number of this rank's seeds. No other rank has it, or had.
        num_streams: How many there have been.
        has_traces: Whether all ranks have traced their programs.
    """

    commit: Commit | None = None
    is_own: bool = True
    stream: int = 0
    num_streams: int = 1
    has_traces: bool = False


class Entrance:
    """Remembers what a rank must tell the others in each membership.

    Args:
        commits: Those of this rank.
        files: Commits on disk; None: there are none.
    """

    def __init__(self, commits: Commits, files: CommitFiles | None) -> None:
        self._commits = commits
        self._files = files
        self._stream: int | None = None
        self._num_streams = 0
        self._base = 0  # of the numbers of commits, above those on disk
        self._count = 0
        self._has_traces = False

    def enter(self, has_traces: bool) -> Entry:
        """Agrees on a commit, and gives it to the ranks that lack it.

        The survivors take the newest commit that all of them have. Other ranks
        get that of the first survivor. Without any survivor, all get the
        newest one on disk.

        Args:
            has_traces: Whether this rank has traced its programs.

        Raises:
            PeerLostError: A rank was lost. No rank has lost a commit.
            DamagedFileError: On rank 0: all commits on disk are damaged.
            FileInUseError: On rank 0: another job writes commits there.
            InvalidArgumentError: On rank 0: something else has the name of a
                commit.
            HvdError: On the other ranks: that.
        """
        held = self._commits.held()
        mine = {
            "held": held,
            "stream": self._stream,
            "num_streams": self._num_streams,
            "base": self._base,
            "has_traces": has_traces,
        }
        ranks = _patiently(
            lambda: objects.allgather_object(mine, name="elastic/enter")
        )
        self._base = max(each["base"] for each in ranks)
        self._count_streams(ranks)
        self._has_traces = all(each["has_traces"] for each in ranks)
        if self._files is not None:
            claim(
                "elastic/commits", self._files.owned, self._files.check_places
            )
        number = newest_of([each["held"] for each in ranks])
        if number is not None:
            has_it = [number in each["held"] for each in ranks]
            return self._enter_with(number, has_it)
        commit = self._from_disk()
        return self._entry(commit, is_own=basics.rank() == 0)

    def next_number(self) -> Number:
        """Returns the number of the next commit; the same on all ranks."""
        self._count += 1
        return self._base + state.generation(), self._count

    def _entry(self, commit: Commit | None, is_own: bool) -> Entry:
        self._count = 0 if commit is None else commit.number[1]
        return Entry(
            commit=commit,
            is_own=is_own,
            stream=self._stream or 0,
            num_streams=self._num_streams,
            has_traces=self._has_traces,
        )

    def _enter_with(self, number: Number, has_it: list[bool]) -> Entry:
        is_own = has_it[basics.rank()]
        commit = self._commits.choose(number) if is_own else None
        if not all(has_it):
            received = _given(commit, has_it.index(True))
            if commit is None:
                commit = received
                self._commits.put(received)
        return self._entry(commit, is_own)

    def _from_disk(self) -> Commit | None:
        if self._files is None:
            return None
        found: list[Commit] = []

        def find() -> bool:
            assert self._files is not None
            newest = self._files.newest()
            found.extend([newest] if newest else [])
            return newest is not None

        if not on_rank_zero("elastic/on_disk", find):
            return None
        commit = found[0] if found else None
        received = _given(commit, 0)
        commit = commit or received
        self._commits.put(commit)
        self._base = commit.number[0]
        if basics.rank() == 0:
            log.info(f"going on from commit {commit.number} on disk")
        return commit

    def _count_streams(self, ranks: list[dict[str, Any]]) -> None:
        """Gives a stream to each rank that has none."""
        number = max(each["num_streams"] for each in ranks)
        for rank, each in enumerate(ranks):
            if each["stream"] is None:
                if rank == basics.rank():
                    self._stream = number
                number += 1
        self._num_streams = number


def newest_of(held: list[list[Number]]) -> Number | None:
    """Returns the newest commit that all ranks have which have any.

    Args:
        held: The numbers of the commits that each rank has.
    """
    some = [set(each) for each in held if each]
    if not some:
        return None
    common = set.intersection(*some)
    # There is one, unless the memory of a rank was damaged.
    return max(common or set.union(*some))


def _given(commit: Commit | None, root_rank: int) -> Commit:
    """Returns the commit of `root_rank`."""
    told = None
    if basics.rank() == root_rank and commit is not None:
        told = (commit.number, commit.header, commit.data.nbytes)
    number, header, num_bytes = _patiently(
        lambda: objects.broadcast_object(
            told, root_rank, name="elastic/commit_header"
        )
    )
    data = np.empty(num_bytes, np.uint8)
    if basics.rank() == root_rank and commit is not None:
        data = commit.data
    for begin in range(0, num_bytes, _CHUNK_BYTES):
        part = data[begin : begin + _CHUNK_BYTES]
        (received,) = _native.core().broadcast(
            f"elastic/commit_data/{begin}", [part], root_rank
        )
        if basics.rank() != root_rank:
            data[begin : begin + _CHUNK_BYTES] = received
    return Commit.of(number, header, data)


def _patiently(call: Callable[[], _Result]) -> _Result:
    """Calls again while a rank that has come in has not yet got so far."""
    while True:
        try:
            return call()
        except StalledError:
            log.info("waiting for new ranks to begin training")
