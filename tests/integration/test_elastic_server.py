"""The server of an elastic job, and members that do not come as they should."""

from __future__ import annotations

import concurrent.futures
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rendezvous_server import Served, outcomes

from hvd_keras._rendezvous.elastic_generations import ElasticGenerations
from hvd_keras._rendezvous.protocol import Identity, News
from hvd_keras._rendezvous.roster import Member
from hvd_keras.exceptions import PeerLostError


class _Elastic(Served):
    """Serves two members; the launcher is this object."""

    def __init__(self, path: str) -> None:
        self.late: list[int] = []
        super().__init__(path, size=2)

    def make_generations(self, size: int) -> ElasticGenerations:
        self.elastic = ElasticGenerations(
            self, min_size=1, patience_seconds=30.0
        )
        for number in range(size):
            self.elastic.member_started(number, "host")
        return self.elastic

    def start(self, number: int) -> None:
        """Tells the server that a member starts."""
        self._call(lambda: self.elastic.member_started(number, "host"))
        self.generations.append(0)

    def identity(self, rank: int, **options: Any) -> Identity:
        return super().identity(rank, **{"size": 0, **options})

    def formed(self, generation: int, members: Sequence[Member]) -> None: ...

    def member_waits(self, member: Member) -> None: ...

    def members_are_awaited(self, members: Sequence[Member]) -> None: ...

    def members_are_late(self, members: Sequence[Member]) -> None:
        self.late += [member.number for member in members]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[_Elastic]:
    directory = tmp_path if len(str(tmp_path)) < 80 else Path("/tmp")
    path = directory / f"elastic.{os.getpid()}"
    found = _Elastic(str(path))
    yield found
    found.close()
    path.unlink()


def test_who_joins_again_has_left_the_generation_before(
    served: _Elastic,
) -> None:
    """Even if the server has not heard the end of the old connection."""
    first, old = outcomes(lambda: served.join(0), lambda: served.proved(1))

    def go_on() -> int:
        with pytest.raises(PeerLostError):
            first.exchange(b"")
        return served.join(0).generation

    generation, new = outcomes(go_on, lambda: served.proved(1))
    assert generation == 2
    for connection in (old, new):
        connection.close()


def test_a_member_that_hangs_in_init_is_left_behind(served: _Elastic) -> None:
    first, hung = outcomes(
        lambda: served.join(0, timeout_seconds=0.3), lambda: served.join(1)
    )
    with pytest.raises(PeerLostError, match="Missing ranks: 1"):
        first.exchange(b"")
    served.settle()
    assert served.late == [1]
    hung.hang_up()


@pytest.mark.timed
@pytest.mark.parametrize("second_comes", [False, True])
def test_newcomers_wait_a_moment_for_each_other(
    served: _Elastic, second_comes: bool
) -> None:
    old = outcomes(lambda: served.join(0), lambda: served.join(1))
    for member in old:
        member.close()
    served.start(2)
    served.start(3)
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        begin = time.monotonic()
        new = [threads.submit(served.join, 2)]
        if second_comes:
            new.append(threads.submit(served.join, 3))
        while old[0].news() != News.CHANGE_DUE:
            assert time.monotonic() < begin + 10
            time.sleep(0.01)
        seconds = time.monotonic() - begin
        again = [threads.submit(served.join, number) for number in (0, 1)]
        members = [each.result(10) for each in (*again, *new)]
    assert {member.generation for member in members} == {2}
    assert (seconds < 0.9) == second_comes
    for member in (*old, *members):
        member.hang_up()
