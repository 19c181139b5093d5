"""What a seed does to a job."""

from __future__ import annotations

import dataclasses
import random
import signal
from typing import TYPE_CHECKING

from virtual_members import plan_of

from hvd_keras.run.hosts.placement import Plan
from hvd_keras.run.spec import Elastic, JobSpec

if TYPE_CHECKING:
    from simulation.job import Job
    from simulation.processes import Process

_NUM_HOSTS = (2, 2, 2, 2, 3, 3, 3, 4, 5)  # of most jobs
_OWN_ERRORS = ("ValueError: odd", "InternalError: odd", "ShutdownError: odd")


class Adversary:
    """Draws a job, and faults that come while it trains."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.random = rng.random
        self.takes_newest = seed % 2 == 1  # see Group
        is_large = self.random() < 0.002
        num_hosts = rng.randrange(6, 65) if is_large else rng.choice(_NUM_HOSTS)
        most_slots = rng.choice((1, 1, 2, 2, 4))
        self.hosts = {
            f"h{i}": 1 + int(self.random() * most_slots)
            for i in range(num_hosts)
        }
        self.is_elastic = self.random() < 0.8
        self.grace = rng.choice((1.0, 10.0))
        self.patience = rng.choice((10.0, 30.0))
        self.heartbeat = rng.choice((3.0, 10.0))
        self.has_discovery = self.random() < 0.25
        self.may_grow = not self.has_discovery and self.random() < 0.3
        self.num_rounds = rng.choice((1, 1, 1, 2))  # of exchanges in `init()`
        self.busy_seconds = rng.choice((0.0, 0.01, 0.05))  # of hvdrun
        self.num_rows = sum(self.hosts.values()) * rng.randrange(5, 80)
        self._is_bad_start = 0.05 if self.random() < 0.5 else 0.0
        self._is_slow_end = 0.1 if self.random() < 0.3 else 0.0

    def spec(self) -> JobSpec:
        """Returns the options of the job."""
        rng, size = self.rng, sum(self.hosts.values())
        elastic = None
        if self.is_elastic:
            elastic = Elastic(
                min_ranks=rng.choice((1, 1, 2, max(1, size // 2), size)),
                max_restarts=rng.choice((0, 3, 3, 10)),
                restart_delay=rng.choice((0.0, 1.0)),
                timeout=rng.choice((0.0, 20.0, 60.0)),
                host_discovery_script="x" if self.has_discovery else None,
                blacklist_cooldown=rng.choice((None, (1.0, 8.0))),
                straggler_factor=rng.choice((None, 2.0)),
            )
        return JobSpec(["train"], elastic=elastic, grace=self.grace)

    def plan(self) -> Plan:
        """Returns the hosts of the job."""
        plan = plan_of(self.hosts)
        if self.is_elastic and self.has_discovery:
            return dataclasses.replace(plan, may_grow=True)
        if self.is_elastic and self.may_grow:
            return Plan("hosts", plan.hosts, None, may_grow=True)
        return plan

    def start_of(self, process: Process) -> tuple[float, str]:
        """Returns when a new process asks to join, or what else it does."""
        seconds = 0.3 + 3.0 * self.random()
        if self.random() >= self._is_bad_start:
            return seconds, "join"
        if self.random() < 0.4:
            process.is_late = True
            return 2.0 * self.patience * self.random(), "join"
        return seconds, "crash" if self.random() < 0.7 else "stuck"

    def exit_delay(self, process: Process) -> float:
        """Returns how long a process takes to end."""
        if self.random() < self._is_slow_end:
            return 5.0 * self.grace * self.random()
        return 0.1 * self.random()

    def begin(self, job: Job) -> None:
        """Says what will happen."""
        mild = [self._kill, self._stop, self._report_straggler, self._freeze]
        faults = mild * 2 + [self._kill, self._fail, self._leave]
        faults += [self._cut] * 3 + [self._end_agent, self._signal_agent]
        faults += [self._reset] * 2
        if self.may_grow:
            faults += [self._come]
        if self.has_discovery:
            faults += [self._name] * 6
        chosen = self.rng.choices(
            mild if self.random() < 0.2 else faults,
            k=self.rng.choice((0, 1, 1, 2, 2, 3, 4, 8)),
        )
        for fault in chosen:
            job.clock.at(60.0 * self.random(), fault, job)
        interrupts = self.random() < 0.05
        if interrupts:
            job.clock.at(60.0 * self.random(), self._interrupt, job)
        options = job.spec.elastic
        job.judge.must_end_well = (
            options is not None
            and options.min_ranks == 1
            and options.max_restarts >= len(chosen)
            and options.timeout > 0
            and all(fault in mild for fault in chosen)
            and not interrupts
            and self._is_bad_start == 0.0
        )

    # ---- Faults ----

    def _victim(self, job: Job) -> Process | None:
        alive = [p for p in job.processes.values() if p.acts()]
        return self.rng.choice(alive) if alive else None

    def _kill(self, job: Job) -> None:
        if (victim := self._victim(job)) is not None:
            job.judge.blamed(victim.number)
            job.trace(f"rank {victim.number} is killed")
            victim.end(killed_by=signal.SIGKILL)

    def _fail(self, job: Job) -> None:
        if (victim := self._victim(job)) is not None:
            job.judge.blamed(victim.number)
            job.trace(f"rank {victim.number} fails")
            victim.fail(self.rng.choice(_OWN_ERRORS))

    def _leave(self, job: Job) -> None:
        victim = self._victim(job)
        if victim is not None and victim.group is not None and job.is_elastic:
            job.judge.blamed(victim.number)
            victim.leave_soon()

    def _stop(self, job: Job) -> None:
        """Stops a process, which its agent soon kills; or lets it hang."""
        if (victim := self._victim(job)) is not None:
            job.trace(f"rank {victim.number} stops")
            victim.stop()
            seconds = 0.6 if self.random() < 0.5 else 3.0 * self.patience
            job.after(seconds, victim.end, 0, signal.SIGKILL)

    def _reset(self, job: Job) -> None:
        """Ends the connection of a member to hvdrun."""
        if job.is_elastic and (victim := self._victim(job)) is not None:
            job.judge.blamed(victim.number)
            victim.lose_connection()

    def _cut(self, job: Job) -> None:
        """Cuts some hosts off from the others, and mends that later."""
        others = [h for h in job.hosts.values() if not h.is_here]
        count = self.rng.randrange(1, len(others) + 1)
        chosen = [h for h in self.rng.sample(others, count) if not h.is_cut]
        job.cut(chosen)
        seconds = 2.5 * self.heartbeat * self.random()
        job.after(seconds, job.mend, chosen)

    def _agents_host(self, job: Job) -> str | None:
        there = [
            h.name
            for h in job.hosts.values()
            if not h.is_here and h.agent is not None and h.agent.has_link
        ]
        return self.rng.choice(there) if there else None

    def _end_agent(self, job: Job) -> None:
        if (name := self._agents_host(job)) is not None:
            agent = job.hosts[name].agent
            assert agent is not None
            job.trace(f"the agent of host {name} ends")
            for process in agent.processes:
                job.judge.blamed(process.number)
            agent.kill_all()
            agent.to_job.carry(job.link_ended, agent)

    def _signal_agent(self, job: Job) -> None:
        if (name := self._agents_host(job)) is not None:
            job.agent_signalled(name, signal.SIGTERM)

    def _report_straggler(self, job: Job) -> None:
        victim = self._victim(job)
        if victim is not None and victim.group is not None and job.is_elastic:
            job.straggles(victim)

    def _name(self, job: Job) -> None:
        """Names some of the hosts, and sometimes others."""
        named = {
            name: slots
            for name, slots in self.hosts.items()
            if self.random() < 0.7
        }
        for number in range(len(self.hosts), len(self.hosts) + 2):
            if self.random() < 0.3:
                named[f"h{number}"] = 1 + int(self.random() * 4)
        job.named(named)

    def _come(self, job: Job) -> None:
        """Lets hosts come, for the first time or again."""
        number = self.rng.randrange(1, len(self.hosts) + 2)
        job.host_comes(f"h{number}", 1 + int(self.random() * 3))

    def _freeze(self, job: Job) -> None:
        """Lets hvdrun find out late what happens."""
        job.freeze(2.0 * self.heartbeat * self.random())

    def _interrupt(self, job: Job) -> None:
        number = self.rng.choice((signal.SIGINT, signal.SIGTERM))
        job.interrupt(number)
        if self.random() < 0.3:
            job.after(self.random(), job.interrupt, number)
