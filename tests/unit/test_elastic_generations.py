"""Who is in an elastic job, and the states that a member goes through."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from virtual_members import bring, come, get_in, heard, told

from hvd_keras._rendezvous import protocol
from hvd_keras._rendezvous.elastic_generations import ElasticGenerations
from hvd_keras._rendezvous.generation import Peer
from hvd_keras._rendezvous.protocol import FrameType, Identity, News, Role
from hvd_keras._rendezvous.roster import Member, State


class _Heard:
    """Notes what generations tell their owner, by the numbers of members."""

    def __init__(self) -> None:
        self.seated: list[list[int]] = []
        self.waits: list[int] = []
        self.awaited: list[list[int]] = []
        self.late: list[list[int]] = []
        self.members: dict[int, Member] = {}

    def formed(self, generation: int, members: Sequence[Member]) -> None:
        self.seated.append([member.number for member in members])
        self.members.update({member.number: member for member in members})
        assert len(self.seated) == generation

    def member_waits(self, member: Member) -> None:
        self.waits.append(member.number)

    def members_are_awaited(self, members: Sequence[Member]) -> None:
        self.awaited.append([member.number for member in members])

    def members_are_late(self, members: Sequence[Member]) -> None:
        self.late.append([member.number for member in members])


def _generations(
    num_members: int, **options: Any
) -> tuple[ElasticGenerations, _Heard]:
    observer = _Heard()
    given = {"min_size": 1, "patience_seconds": 30.0, **options}
    generations = ElasticGenerations(observer, **given)
    for number in range(num_members):
        generations.member_started(number, "a")
    return generations, observer


def _trained(
    num_members: int, **options: Any
) -> tuple[ElasticGenerations, _Heard, list[Peer]]:
    """Members that are all in generation 1."""
    generations, observer = _generations(num_members, **options)
    peers = [come(generations, number) for number in range(num_members)]
    get_in(generations, *peers)
    return generations, observer, peers


def _news(peer: Peer) -> News | None:
    """Returns what the last news say; None: there were none."""
    found = [body for kind, body in heard(peer) if kind == FrameType.NEWS]
    return News(found[-1][0]) if found else None


def test_members_get_their_seats_when_all_have_come() -> None:
    generations, observer = _generations(3)
    peers = [come(generations, number) for number in (2, 0)]
    assert [heard(peer) for peer in peers] == [[], []]
    assert not bring(generations, peers[0])  # it has nothing to say yet
    peers.append(come(generations, 1))
    assert observer.seated == [[0, 1, 2]]
    for peer, rank in zip(peers, (2, 0, 1), strict=True):
        ((kind, body),) = heard(peer)
        assert kind == FrameType.JOINED
        assert protocol.unpack_generation(body) == 1
        assert protocol.unpack_seat(body) == (rank, 3, rank, 3, 0, 1)
    get_in(generations, *peers)
    assert generations.last() == 1


@pytest.mark.parametrize("how", ["lost", "ended"])
def test_who_dies_in_init_is_left_behind(how: str) -> None:
    generations, observer = _generations(3)
    peers = [come(generations, number) for number in range(3)]
    for peer in peers[:2]:
        heard(peer)
        bring(generations, peer)
    if how == "lost":
        generations.lost(peers[2], 1.0)
    generations.member_ended(2, "(pid 102) was killed by SIGKILL", 1.0)
    what = "(pid 102) was killed by SIGKILL"
    if how == "lost":
        what = "went away during `init()` (pid 102)"
    for peer in peers[:2]:
        text = f"PeerLostError\nRank 2 {what} before the job was up."
        assert told(peer) == text
    get_in(
        generations,
        *(come(generations, number, 2.0, generation=1) for number in (0, 1)),
    )
    assert observer.seated == [[0, 1, 2], [0, 1]]


def test_who_comes_again_has_left_its_old_connection() -> None:
    generations, observer = _generations(2)
    peers = [come(generations, number) for number in range(2)]
    again = come(generations, 0, generation=1)
    assert peers[0].closes
    assert not heard(peers[0])
    assert "went away during `init()`" in told(peers[1])
    generations.lost(peers[0], 0.0)  # the old one: no matter
    get_in(generations, again, come(generations, 1, generation=1))
    assert len(observer.seated) == 2


def test_a_member_that_hangs_in_init_is_late() -> None:
    generations, observer = _generations(2)
    first, _ = (come(generations, number) for number in range(2))
    bring(generations, first, now=5.0, timeout_seconds=7.0)
    assert generations.deadlines() == [12.0]
    generations.step(11.9)
    assert not observer.late
    generations.step(12.0)
    assert observer.late == [[1]]
    assert "Missing ranks: 1" in told(first)


def test_members_that_do_not_come_again_are_awaited_and_late() -> None:
    generations, observer, _ = _trained(3, warning_seconds=4.0)
    come(generations, 0, 100.0, generation=1)
    assert sorted(generations.deadlines()) == [104.0, 130.0]
    come(generations, 2, 103.0, generation=1)
    generations.step(104.0)
    assert observer.awaited == [[1]]
    generations.step(129.9)
    assert not observer.late
    generations.step(130.0)
    assert observer.late == [[1]]
    assert generations.deadlines() == []
    generations.member_ended(1, "was killed", 131.0)
    assert observer.seated == [[0, 1, 2], [0, 2]]


@pytest.mark.parametrize("second_comes", [False, True])
def test_newcomers_wait_a_moment_for_each_other(second_comes: bool) -> None:
    generations, observer, old = _trained(2)
    generations.member_started(2, "a")
    generations.member_started(3, "a")
    new = [come(generations, 2, 10.0)]
    assert observer.waits == [2]
    assert generations.deadlines() == [11.0]
    if second_comes:
        new.append(come(generations, 3, 10.5))
    else:
        generations.step(10.9)
        assert _news(old[0]) is None
        generations.step(11.0)
    assert _news(old[0]) == News.CHANGE_DUE
    new += [come(generations, number, 12.0, generation=1) for number in (0, 1)]
    get_in(generations, *new)
    assert observer.seated[-1] == [0, 1, 2, 3][: 3 + second_comes]


def test_newcomers_stay_out_when_a_member_has_finished() -> None:
    generations, observer, old = _trained(2)
    generations.takes_newcomers = False
    generations.member_started(2, "a")
    come(generations, 2, 10.0)
    assert _news(old[0]) is None
    for number in (0, 1):
        come(generations, number, 12.0, generation=1)
    assert observer.seated[-1] == [0, 1]


def test_members_are_told_who_must_leave() -> None:
    generations, _, peers = _trained(3)
    generations.member_leaves(1, 0.0, soon=True)
    assert [_news(peer) for peer in peers] == [News.CHANGE_DUE] * 3
    generations.ask_to_leave([2, 7], 0.0)
    must = News.CHANGE_DUE | News.MUST_LEAVE
    assert [_news(peer) for peer in peers] == [None, None, must]
    generations.ask_to_leave([1], 0.0)
    generations.member_leaves(1, 0.0, soon=True)  # it must leave all the same
    assert [_news(peer) for peer in peers] == [None, must, None]
    generations.member_leaves(1, 0.0, soon=False)
    generations.member_leaves(2, 0.0, soon=False)
    assert _news(peers[0]) == News.NOTHING


def test_a_member_that_leaves_is_not_awaited_and_not_chosen() -> None:
    """Not even if it was waiting for the next generation when it failed."""
    generations, observer, _ = _trained(3)
    come(generations, 2, 1.0, generation=1)
    generations.member_leaves(2, 2.0, soon=False)
    assert generations.num_waiting() == 0
    come(generations, 0, 3.0, generation=1)
    come(generations, 1, 3.0, generation=1)
    assert observer.seated[-1] == [0, 1]
    # It changes its mind, and is a newcomer to the others.
    come(generations, 2, 4.0, generation=1)
    for number in (0, 1):
        come(generations, number, 5.0, generation=2)
    assert observer.seated[-1] == [0, 1, 2]


def test_the_states_of_a_member() -> None:
    generations, observer = _generations(2)

    def state() -> State:
        return observer.members[1].state

    peers = [come(generations, number) for number in range(2)]
    assert state() == State.IN
    get_in(generations, *peers)
    generations.lost(peers[1], 0.0)
    assert state() == State.AWAY
    waiting = come(generations, 1, 1.0, generation=1)
    assert state() == State.WAITING
    generations.lost(waiting, 1.0)
    assert state() == State.AWAY
    again = come(generations, 1, 1.0, generation=1)
    generations.member_leaves(1, 2.0, soon=False)
    assert state() == State.LEAVING
    generations.lost(again, 2.0)
    assert state() == State.LEAVING
    come(generations, 1, 3.0, generation=1)
    assert state() == State.WAITING
    come(generations, 0, 3.0, generation=1)
    assert state() == State.IN
    generations.host_fell_silent([1])
    generations.member_ended(1, "has gone", 4.0)
    assert state() == State.SILENT
    assert [member.number for member in generations.present()] == [0]
    generations.member_ended(0, "has gone", 4.0)
    assert observer.members[0].state == State.ENDED


def test_the_architecture_draws_these_states() -> None:
    text = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()
    _, _, after = text.partition("stateDiagram-v2")
    drawn, _, _ = after.partition("```")
    names = set(re.findall(r"\b[A-Z]{2,}\b", drawn))
    assert names == {state.name for state in State}


def test_too_few_members_wait_for_more() -> None:
    generations, observer, _ = _trained(2, min_size=2)
    assert generations.short_since is None
    generations.member_ended(1, "was killed", 50.0)
    assert generations.short_since == 50.0
    come(generations, 0, 51.0, generation=1)
    assert generations.short_since == 50.0
    generations.member_started(2, "a")
    generations.go_on(60.0)
    assert generations.short_since == 50.0  # it has not come yet
    come(generations, 2, 70.0)
    assert generations.short_since is None
    assert observer.seated[-1] == [0, 2]


def test_nobody_waits_for_members_that_the_launcher_still_starts() -> None:
    generations, observer, _ = _trained(2)
    generations.num_starting = 2
    for number in (0, 1):
        generations.member_ended(number, "was killed", 1.0)
    for number in (2, 3):
        generations.member_started(number, "a")
    generations.num_starting = 0
    come(generations, 2, 2.0)
    assert len(observer.seated) == 1
    come(generations, 3, 3.0)
    assert observer.seated[-1] == [2, 3]


def test_who_was_never_in_begins_nothing_when_others_have_finished() -> None:
    generations, observer, _ = _trained(1)
    generations.member_started(1, "a")
    come(generations, 1, 1.0)
    generations.takes_newcomers = False
    generations.member_ended(0, "has ended", 2.0)
    assert len(observer.seated) == 1


def test_a_process_that_starts_later_has_as_long_to_come() -> None:
    observer = _Heard()
    generations = ElasticGenerations(
        observer, min_size=1, patience_seconds=30.0
    )
    for number in (0, 1):
        generations.member_started(number, "a")
    come(generations, 0, 0.0)
    generations.member_started(2, "b")
    generations.go_on(29.0)
    assert max(generations.deadlines()) == 59.0  # it may come until then


def test_the_end_is_told_to_who_waits_and_who_comes() -> None:
    generations, observer, _ = _trained(2)
    waiting = come(generations, 0, 1.0, generation=1)
    generations.end_job("too few.")
    assert told(waiting) == "JobEndedError\ntoo few."
    assert (
        told(come(generations, 1, 2.0, generation=1))
        == "JobEndedError\ntoo few."
    )
    assert len(observer.seated) == 1


@pytest.mark.parametrize("silent", [{1}, {2, 3}, {0, 1}, {1, 2, 3}])
def test_the_smaller_side_of_a_network_ends(silent: set[int]) -> None:
    generations, observer, _ = _trained(4)
    generations.host_fell_silent([*silent])
    for number in silent:
        generations.member_ended(number, "was lost", 1.0)
    here = sorted({*range(4)} - silent)
    peers = [come(generations, number, 2.0, generation=1) for number in here]
    if silent in ({1}, {2, 3}):
        assert observer.seated[-1] == here
    else:
        assert (
            f"{len(silent)} of 4 members fell silent." in generations.why_ended
        )
        assert told(peers[0]).startswith("JobEndedError\n")


def test_strangers_are_refused() -> None:
    generations, _, _ = _trained(2)
    for number, size, generation, text in (
        (7, 0, 0, "The job must know the member. Received: number 7"),
        (0, 2, 0, "The job must know the member."),
        (0, 0, 2, "must come from a generation of this server, up to 1."),
        (0, 0, 1, "Member 0 is there already: pid 100. Received: pid 9."),
    ):
        refusal = generations.refusal(
            Identity(Role.MEMBER, number, size, generation, 9)
        )
        assert refusal is not None
        assert text in refusal[1]
    reporter = Identity(Role.REPORTER, 0, 0, 0, 9)  # any child of a member
    assert generations.refusal(reporter) is None
