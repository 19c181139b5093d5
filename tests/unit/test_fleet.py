"""Which hosts an elastic job takes in, and when it tries one again."""

from __future__ import annotations

import pytest
from virtual_members import plan_of

from hvd_keras.run.hosts.placement import of_this_host
from hvd_keras.run.job.fleet import Fleet
from hvd_keras.run.job.policy import Action, EndHost, Say, Start, StartHost
from hvd_keras.run.job.slots import Slots
from hvd_keras.run.ranks.environment import Place


def _fleet(
    *, tries_lost_again: bool = True
) -> tuple[Fleet, Slots, list[Action]]:
    slots = Slots(9, 0.0, (2.0, 8.0) if tries_lost_again else (0.0, 0.0))
    plan = plan_of({"a": 1, "b": 2})
    actions: list[Action] = []
    fleet = Fleet(
        slots,
        plan,
        actions.append,
        namer="the discovery script",
        patience_seconds=5.0,
        tries_lost_again=tries_lost_again,
    )
    return fleet, slots, actions


def test_a_lost_host_is_tried_after_its_cooldown() -> None:
    fleet, slots, actions = _fleet()
    fleet.take_in("b", 2)
    assert not fleet.may_grow()
    fleet.start("b", {7: 0, 8: 1}, ())
    assert list(fleet.lose("b", now=10.0)) == [7, 8]
    assert list(fleet.lose("b", now=10.0)) == []  # it is gone already
    assert fleet.may_grow()
    assert fleet.next_deadline() == 12.0
    actions.clear()
    fleet.step((), now=11.9)
    assert actions == []
    fleet.step((), now=12.0)
    assert actions == [StartHost("b", 2)]
    # Its agent does not start: the next try comes later.
    fleet.give_up("b", "no route", now=12.0)
    assert actions[1:] == [
        EndHost("b"),
        Say("host b did not start: no route"),
    ]
    assert fleet.next_deadline() == 16.0
    fleet.step((), now=16.0)
    assert actions[3:] == [StartHost("b", 2)]
    fleet.take_in("b", 2)
    assert len(slots.free(16.0)) == 2
    assert fleet.next_deadline() is None
    assert not fleet.may_grow()


@pytest.mark.parametrize("way", ["silent", "lost"])
def test_an_agent_that_does_not_come_is_given_up(way: str) -> None:
    fleet, _, actions = _fleet()
    fleet.take_in("b", 2)
    fleet.lose("b", now=0.0)
    fleet.step((), now=2.0)
    actions.clear()
    if way == "lost":  # before it has said a word
        assert list(fleet.lose("b", now=7.0)) == []
        why = "its agent was lost"
    else:
        assert fleet.next_deadline() == 7.0
        fleet.step((), now=7.0)
        why = "it did not come within 5 s (HVD_START_TIMEOUT)"
    assert actions == [EndHost("b"), Say(f"host b did not start: {why}")]
    assert fleet.next_deadline() == 11.0


def test_without_a_cooldown_a_lost_host_stays_away() -> None:
    fleet, _, actions = _fleet(tries_lost_again=False)
    fleet.take_in("b", 2)
    fleet.lose("b", now=0.0)
    assert not fleet.may_grow()
    fleet.step((), now=1000.0)
    assert actions == []


def test_a_host_that_is_let_go_ends_after_its_members() -> None:
    fleet, slots, actions = _fleet()
    fleet.take_in("a", 1, is_here=True)
    fleet.take_in("b", 2)
    fleet.start("a", {0: 0}, ())
    fleet.start("b", {1: 0}, ())
    fleet.start("b", {2: 1}, [(2, 2, 3, 1)])
    started = actions[-1]
    assert isinstance(started, Start)
    assert started.ranks == [2]
    assert started.place == Place(
        *(0, 2, 2, 0, 2, True),
        members=(1, 2),
        slots=(0, 1),
        newcomers=[(2, 2, 3, 1)],
    )
    actions.clear()
    # A program names other hosts than those that are used.
    assert fleet.use({"c": 3}, now=0.0) == [0, 1, 2]
    assert actions[-1] == StartHost("c", 3)
    assert slots.free(0.0) == []
    fleet.step({0, 2}, now=0.0)
    assert EndHost("b") not in actions
    fleet.step({0}, now=0.0)
    assert actions[-1] == EndHost("b")
    fleet.step((), now=0.0)
    assert EndHost("a") not in actions  # hvdrun itself is there
    # Both are named again: only one needs an agent.
    actions.clear()
    fleet.use({"a": 1, "b": 2, "c": 3}, now=1.0)
    assert actions == [StartHost("b", 2)]
    assert fleet.is_here("a")
    assert [slot.host for slot in slots.free(1.0)] == ["a"]


@pytest.mark.parametrize(("cools", "seconds"), [(True, 2.0), (False, 10.0)])
def test_a_host_that_has_failed_is_not_used_at_once(
    cools: bool, seconds: float
) -> None:
    fleet, _, actions = _fleet(tries_lost_again=cools)
    fleet.take_in("b", 2)
    fleet.lose("b", now=5.0)
    fleet.close()  # a program names the hosts
    fleet.use({"b": 2}, now=5.0 + seconds - 0.1)
    assert actions == []
    fleet.use({"b": 2, "c": 0}, now=5.0 + seconds)
    assert actions == [StartHost("b", 2)]


def test_a_job_that_ends_tries_no_lost_host_again() -> None:
    fleet, _, _ = _fleet()
    fleet.take_in("b", 2)
    fleet.close()
    fleet.lose("b", now=0.0)
    assert fleet.next_deadline() is None
    assert not fleet.may_grow()


def test_the_ranks_of_a_job_on_one_host_know_that() -> None:
    actions: list[Action] = []
    fleet = Fleet(
        *(Slots(9, 0.0, (0.0, 0.0)), of_this_host(2), actions.append),
        namer="the discovery script",
        patience_seconds=5.0,
        tries_lost_again=False,
    )
    fleet.take_in("a", 2, is_here=True)
    fleet.start("a", {0: 0}, ())
    assert isinstance(actions[0], Start)
    assert actions[0].place.cross_size == 1
