"""The ranks of one generation, who train together: a model of the core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_keras._job.hosts.partition import may_go_on
from hvd_keras._rendezvous.protocol import ReportKind
from simulation.invariants import check

if TYPE_CHECKING:
    from simulation.job import Job
    from simulation.processes import Process

_STEP_SECONDS = 1.0


class Group:
    """Trains when all have come; stops when one is lost.

    Rows are counted: each step takes one for each rank. A commit follows each
    step, but one that is lost in the last step may have no part in it.
    """

    def __init__(self, job: Job, generation: int, size: int) -> None:
        self.generation = generation
        self.size = size
        self.members: dict[int, Process] = {}  # by rank
        self.is_broken = False
        self.runs_since: float | None = None  # it trains
        self.base = 0  # rows at that time
        self.sovereign: list[Process] = []  # who go on without hvdrun
        self._num_came = 0
        self._has_begun = False
        self._is_changing = False
        self._job = job

    # ---- Training ----

    def came(self, process: Process) -> None:
        """Notes that a member has come in."""
        self._num_came += 1
        process.num_generations += 1
        if self.is_broken:
            self._notify(process)
        elif self._num_came == self.size:
            self._begin()

    def _begin(self) -> None:
        states = [p.done for p in self.members.values() if p.done is not None]
        first = self.members[0]
        if states:
            check(max(states) - min(states) <= self._job.judge.most_behind,
                  "a commit was lost")  # fmt: skip
            # `hvd.elastic.fit` takes the newest commit that all have, a `State`
            # the newest of all.
            takes_newest = self._job.adversary.takes_newest
            self.base = max(states) if takes_newest else min(states)
        else:
            self._job.judge.begins_anew()
            self.base = 0
            first.tell(ReportKind.BEGINS)
        for process in self.members.values():
            process.done = self.base
        self._has_begun = True
        self._job.judge.trains(self)
        self._run()

    def _run(self) -> None:
        now = self._job.clock.now
        if any(
            p.is_stuck or p.agent.host.is_cut for p in self.members.values()
        ):
            self.pause()
            return
        self.runs_since = now
        left = max(0, self._job.total_rows - self.base)
        seconds = -(-left // self.size) * _STEP_SECONDS
        self._job.after(seconds, self._finish, self.runs_since)
        if any(p.hears_of_change() for p in self.members.values()):
            self.change()

    def pause(self) -> None:
        """Stands still, for somebody does not answer."""
        if self.runs_since is not None:
            self.base = self._progress()
            self.runs_since = None

    def resume(self) -> None:
        """Goes on, if all answer again."""
        is_still = self.runs_since is None and not self.is_broken
        if self._has_begun and is_still:
            self._run()

    def _progress(self) -> int:
        """Returns how many rows all ranks have done."""
        if self.runs_since is None:
            return self.base
        seconds = self._job.clock.now - self.runs_since
        steps = int(seconds / _STEP_SECONDS + 1e-6)
        return min(self._job.total_rows, self.base + steps * self.size)

    def _finish(self, since: float) -> None:
        if self.runs_since != since or self._progress() < self._job.total_rows:
            return
        self._job.judge.finished(self)
        for process in self.members.values():
            process.done = self._job.total_rows
            process.finish()
        self.runs_since = None
        self.is_broken = True

    def change(self) -> None:
        """Makes way for the next generation at the end of this step."""
        if self.runs_since is not None and not self._is_changing:
            self._is_changing = True
            self._job.after(_STEP_SECONDS, self._change)

    def _change(self) -> None:
        self._is_changing = False
        if self.is_broken or self.runs_since is None:
            return
        self.pause()
        self._job.judge.stops(self)
        self.is_broken = True
        for process in self.members.values():
            process.done = self.base
        for process in list(self.members.values()):
            process.change()

    # ---- Losses ----

    def lose(self, process: Process) -> None:
        """Notes that a member is gone; the others notice soon."""
        self._break()
        for other in self.members.values():
            if other is not process:
                self._notify(other)

    def _break(self) -> None:
        if self.is_broken:
            return
        self.pause()
        self.is_broken = True
        if self._has_begun:
            # Who was lost may have ended before all had the last commit.
            for process in self.members.values():
                late = self._job.chance(0.2) and self.base >= self.size
                own = self.base - self.size * late
                process.done = max(own, process.done or 0)
            self._job.judge.stops(self)

    def _notify(self, process: Process) -> None:
        process.later(
            self._job.delay(process.agent.host), process.lost_peer, self
        )

    def network_changed(self) -> None:
        """Notes that hosts were cut off, or that the network was mended."""
        if self.is_broken:
            return
        if self.is_apart():
            self.pause()
        else:
            self.resume()

    def is_apart(self) -> bool:
        """Whether members cannot reach each other."""
        sides = {p.agent.host.is_cut for p in self.members.values()}
        return len(sides) > 1

    def fell_silent(self) -> None:
        """Lets each side decide, when it has heard nothing for too long."""
        if not self.is_apart() or self.is_broken:
            return
        self._break()
        if len(self.members) < self.size:
            for process in self.members.values():
                self._notify(process)
            return  # the others wait for the server
        first_is_cut = self.members[0].agent.host.is_cut
        for process in list(self.members.values()):
            host = process.agent.host
            self._notify(process)
            if not host.is_cut:
                continue  # hvdrun decides
            lost = [
                rank
                for rank, other in self.members.items()
                if other.agent.host is not host
                and (not other.agent.host.is_cut or not first_is_cut)
            ]
            if process.is_alive and may_go_on(lost, self.size):
                self.sovereign.append(process)
        self._job.judge.check_one_side(self)
