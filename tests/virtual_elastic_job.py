"""An elastic job in a time that the test moves: its policy, and no process."""

from __future__ import annotations

import dataclasses
import signal
from typing import Any

from virtual_members import come, get_in, plan_of

from hvd_keras._rendezvous.generation import Peer
from hvd_keras._rendezvous.protocol import Report, ReportKind
from hvd_keras.config import Config
from hvd_keras.run.job.elastic import Elastic
from hvd_keras.run.job.policy import HostSlots, Say, Signal, Start
from hvd_keras.run.spec import Elastic as Options
from hvd_keras.run.spec import JobSpec


class Job:
    """A job of members that do what the test says."""

    def __init__(
        self,
        hosts: dict[str, int],
        num_ranks: int | None = None,
        *,
        config: Config | None = None,
        may_grow: bool = False,
        **more: Any,
    ) -> None:
        """Begins on hosts with so many slots, the first of them here."""
        plan = plan_of(hosts, num_ranks)
        plan = dataclasses.replace(plan, may_grow=may_grow)
        elastic = Options(**{"min_ranks": 1, **more})
        spec = JobSpec(["train"], num_ranks, elastic=elastic, grace=10.0)
        self.policy = Elastic(spec, plan, config or Config())
        self.now = 0.0
        self.peers: dict[int, Peer] = {}
        self.done: list[Any] = []  # what the policy asked for
        first, *others = hosts.items()
        there = [HostSlots(*first, is_here=True)]
        there += [HostSlots(*other) for other in others]
        self.policy.begin(there, self.now)

    def wait(self, seconds: float = 0.0) -> None:
        """Lets time pass, and deadlines come."""
        end = self.now + seconds
        while True:
            self.policy.step(self.now)
            self.policy.generations.step(self.now)
            deadlines = [*self.policy.generations.deadlines()]
            own = self.policy.next_deadline(self.now)
            deadlines += [own] if own is not None else []
            self.done += self.policy.actions
            self.policy.actions.clear()
            due = [at for at in deadlines if self.now < at <= end]
            if not due:
                break
            self.now = min(due)
        self.now = end

    def started(self) -> list[int]:
        """Returns the members that were to start since the last call."""
        self.wait()
        starts = [one for one in self.done if isinstance(one, Start)]
        self.done = [one for one in self.done if one not in starts]
        return [rank for one in starts for rank in one.ranks]

    def said(self) -> list[str]:
        """Returns what was said since the last call."""
        self.wait()
        says = [one for one in self.done if isinstance(one, Say)]
        self.done = [one for one in self.done if one not in says]
        return [one.text for one in says]

    def killed(self) -> list[int]:
        """Returns who was to be killed since the last call."""
        self.wait()
        kills = [one for one in self.done if isinstance(one, Signal)]
        self.done = [one for one in self.done if one not in kills]
        return [
            rank
            for one in kills
            for rank in one.ranks
            if one.number == signal.SIGKILL
        ]

    def train(self, *numbers: int) -> None:
        """Brings these members into the next generation, in which all are."""
        generation = self.policy.generations.last()
        waiting = [n for n, p in self.peers.items() if p.generation is None]
        for number in sorted({*numbers} - {*waiting}, reverse=True):
            self.come(number)  # newcomers first
        assert self.policy.generations.last() == generation + 1
        assert sorted(self.policy.members) == sorted(numbers)
        get_in(self.policy.generations, *(self.peers[n] for n in numbers))
        self.tell(ReportKind.ELASTIC, numbers[0])

    def come(self, number: int) -> None:
        """Lets a member ask for a place in the next generation."""
        own = self.policy.ranks[number].generation
        peer = come(self.policy.generations, number, self.now, generation=own)
        self.peers[number] = peer

    def tell(self, kind: ReportKind, number: int, text: str = "") -> None:
        self.policy.reported(Report(kind, number, text), self.now)

    def exit(
        self, number: int, status: int = 0, *, error: str = "", killed: int = 0
    ) -> None:
        """Ends the process of a member."""
        rank = self.policy.ranks[number]
        if error:
            self.tell(ReportKind.FAILS, number, error)
        rank.pid, rank.signal = 500 + number, killed or None
        rank.exit_status = 128 + killed if killed else status
        if number in self.peers:
            self.policy.generations.lost(self.peers.pop(number), self.now)
        self.policy.exited(number, self.now)

    def lose(self, host: str, *numbers: int, may_run: bool = False) -> None:
        """Loses a host with its members."""
        self.policy.host_was_lost(host, self.now, may_run=may_run)
        for number in numbers:
            self.policy.ranks[number].is_lost = True
            self.exit(number, 1)
