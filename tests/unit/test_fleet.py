"""Which hosts an elastic job takes in, and when it tries one again."""

from __future__ import annotations

import time
from typing import Any

import pytest

from hvd_keras.config import Config
from hvd_keras.run import fleet as module
from hvd_keras.run import placement
from hvd_keras.run.fleet import Fleet
from hvd_keras.run.hosts import RemoteHost
from hvd_keras.run.loop import Loop
from hvd_keras.run.slots import Slots


class _Gathering:
    """Starts no agents, and notes what it is asked for."""

    def __init__(self) -> None:
        self.started: list[RemoteHost] = []
        self.given_up: list[RemoteHost] = []
        self.failures: dict[RemoteHost, str] = {}

    def start_later(self, host: RemoteHost) -> None:
        self.started.append(host)

    def why_not_here(self, host: RemoteHost) -> str | None:
        return self.failures.get(host)

    def give_up(self, host: RemoteHost) -> None:
        self.given_up.append(host)


class _Clock:
    """The time in `fleet`, which a test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.monotonic()
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


def _fleet(
    gathering: _Gathering, said: list[str], *, tries_lost_again: bool = True
) -> tuple[Fleet, Slots]:
    slots = Slots(9, 0.0, (2.0, 8.0) if tries_lost_again else (0.0, 0.0))
    plan = placement.of_hosts([("a", 1), ("b", 2)], None)
    options: dict[str, Any] = {
        "patience_seconds": 5.0,
        "tries_lost_again": tries_lost_again,
        "say": said.append,
        "new_host": _host,
        "runs": lambda number: False,
        "ask_to_leave": lambda numbers: None,
    }
    made = Fleet([], slots, plan, **options)
    made.gathering = gathering  # type: ignore[assignment]
    return made, slots


def _host(name: str) -> RemoteHost:
    watcher: Any = None
    return RemoteHost(Loop(), watcher, name, Config())


def test_a_lost_host_is_tried_after_its_cooldown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, gathering, said = _Clock(monkeypatch), _Gathering(), []
    fleet, slots = _fleet(gathering, said)
    host = _host("b")
    fleet.take_in(host, 2)
    assert not fleet.may_grow()
    assert fleet.lose(host)
    assert not fleet.lose(host)  # it is gone already
    assert fleet.may_grow()
    assert fleet.next_deadline() == clock.now + 2.0
    clock.now += 1.9
    fleet.step()
    assert gathering.started == []
    clock.now += 0.1
    fleet.step()
    (again,) = gathering.started
    assert (again.name, again.num_slots) == ("b", 2)
    # Its agent does not start: the next try comes later.
    gathering.failures[again] = "no route"
    fleet.step()
    assert said[-1] == "host b did not start: no route"
    assert gathering.given_up == [again]
    assert fleet.next_deadline() == clock.now + 4.0
    clock.now += 4.0
    fleet.step()
    fleet.take_in(gathering.started[-1], 2)
    assert len(slots.free(clock.now)) == 2
    assert fleet.next_deadline() is None
    assert not fleet.may_grow()


@pytest.mark.parametrize("way", ["silent", "lost"])
def test_an_agent_that_does_not_come_is_given_up(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    clock, gathering, said = _Clock(monkeypatch), _Gathering(), []
    fleet, _ = _fleet(gathering, said)
    host = _host("b")
    fleet.take_in(host, 2)
    fleet.lose(host)
    clock.now += 2.0
    fleet.step()
    (again,) = gathering.started
    if way == "lost":  # before it has said a word
        assert not fleet.lose(again)
        assert "its agent was lost" in said[-1]
    else:
        assert fleet.next_deadline() == clock.now + 5.0
        clock.now += 5.0
        fleet.step()
        assert "did not come within 5 s (HVD_START_TIMEOUT)" in said[-1]
    assert gathering.given_up == [again]
    assert fleet.next_deadline() == clock.now + 4.0


def test_without_a_cooldown_a_lost_host_stays_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, gathering = _Clock(monkeypatch), _Gathering()
    fleet, _ = _fleet(gathering, [], tries_lost_again=False)
    host = _host("b")
    fleet.take_in(host, 2)
    assert fleet.lose(host)
    assert not fleet.may_grow()
    clock.now += 1000
    fleet.step()
    assert gathering.started == []
