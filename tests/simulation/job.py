"""A simulated job: does what the policy asks, as `hvd_keras.run.job.job`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hvd_keras._rendezvous.protocol import Identity, Report, ReportKind, Role
from hvd_keras.config import Config
from hvd_keras.run.hosts.link import was_silent
from hvd_keras.run.job import policy
from hvd_keras.run.job.elastic import Elastic
from hvd_keras.run.job.fixed import Fixed
from simulation.adversary import Adversary
from simulation.clock import Clock
from simulation.groups import Group
from simulation.hosts import Agent, Host
from simulation.invariants import Judge, ViolationError, check
from simulation.processes import Connection, Process

_END_SECONDS = 20_000.0  # no job takes so long
_MOST_TURNS = 100  # without time going by and anything happening


class Job:
    """One job. It raises `ViolationError`."""

    def __init__(self, seed: int, *, traces: bool = False) -> None:
        self.clock = Clock()
        self.adversary = adversary = Adversary(seed)
        self.is_elastic = adversary.is_elastic
        self.total_rows = adversary.num_rows
        self.config = Config(
            start_timeout_seconds=adversary.patience,
            heartbeat_timeout_seconds=adversary.heartbeat,
        )
        spec, plan = adversary.spec(), adversary.plan()
        self.policy: Any
        if spec.elastic is None:
            self.policy = Fixed(spec, plan)
        else:
            self.policy = Elastic(spec, plan, self.config)
        self.spec = spec
        self.hosts: dict[str, Host] = {}
        self.processes: dict[int, Process] = {}
        self.connections: list[Connection] = []
        self.judge = Judge(self)
        self._traces = traces
        self.groups: dict[int, Group] = {}  # by generation
        self.frozen_seconds = 0.0
        self._freezes_until = 0.0
        self.is_touched = True  # hvdrun has heard something

    # ---- Time and chance ----

    def after(
        self, seconds: float, call: Callable[..., Any], *given: Any
    ) -> None:
        """Calls a function after a while."""
        self.clock.at(self.clock.now + seconds, call, *given)

    def chance(self, likely: float) -> bool:
        """Whether something happens."""
        return self.adversary.random() < likely

    def pause(self) -> float:
        """Returns how long a process takes for something."""
        return 0.02 * self.adversary.random()

    def delay(self, host: Host) -> float:
        """Returns how long a message takes from or to a host."""
        longest = 0.001 if host.is_here else 0.05
        seconds = longest * self.adversary.random()
        return seconds * 20.0 if self.chance(0.02) else seconds

    # ---- The loop ----

    def run(self) -> int:
        """Runs it to its end; returns the exit status."""
        names = list(self.adversary.hosts.items())
        for name, num_slots in names:
            self._agent(name, num_slots).has_link = True
        self.policy.begin(
            [
                policy.HostSlots(name, slots, is_here=self.hosts[name].is_here)
                for name, slots in names
            ],
            0.0,
        )
        self.adversary.begin(self)
        num_idle = 0
        due: float | None = None
        busy_until = 0.0
        while True:
            now = self.clock.now
            event = self.clock.next_time()
            # Hvdrun may find more than one message when it looks.
            if self.is_touched and (event is None or event > busy_until):
                self.is_touched = False
                self._turn()
                if not self.policy.goes_on():
                    break
                due = self._deadline()
                event = self.clock.next_time()
                busy_until = now + self.adversary.busy_seconds
                busy_until = max(busy_until, self._freezes_until)
            check(due is not None or event is not None, "all wait for ever")
            is_busy = self.is_touched
            if event is not None and (is_busy or due is None or event <= due):
                self.clock.step()
                self.judge.check_generation()
                num_idle = 0
            elif due is not None:
                num_idle = 0 if due > now else num_idle + 1
                check(num_idle < _MOST_TURNS, "it is always due")
                self.clock.now = max(now, due)
                self.is_touched = True
            check(self.clock.now < _END_SECONDS, "the job never ends")
        return self.judge.check_end()

    def _deadline(self) -> float | None:
        own = self.policy.next_deadline(self.clock.now)
        found = self.policy.generations.deadlines()
        return min(found if own is None else [own, *found], default=None)

    def _turn(self) -> None:
        """Does what hvdrun does when it has heard something."""
        now = self.clock.now
        self.policy.generations.step(now)
        self._act()
        self.policy.step(now)
        self._act()
        for connection in [
            c for c in self.connections if c.peer.unsent or c.peer.closes
        ]:
            connection.flush()
        self.judge.check_generation()

    def _act(self) -> None:
        actions = self.policy.actions
        while actions:
            self._do(actions.popleft())

    def _do(self, action: policy.Action) -> None:
        match action:
            case policy.Say(text):
                self.trace(text)
                if self.is_elastic and text.startswith("the job ends"):
                    self.judge.check_why(text)
            case policy.Start(name, place, ranks):
                agent = self._agent_of(name)
                agent.place = place
                self._order(agent, agent.start, list(ranks))
            case policy.Signal(number, ranks):
                for host in self.hosts.values():
                    self._signal(host, number, ranks)
            case policy.StartHost(name, num_slots):
                self._start_host(name, num_slots)
            case policy.EndHost(name):
                self._end_host(name)

    def trace(self, text: str) -> None:
        """Shows a line, if the user wants that."""
        if self._traces:
            print(f"{self.clock.now:9.3f} {text}")

    # ---- Hosts ----

    def _agent(self, name: str, num_slots: int) -> Agent:
        if name not in self.hosts:  # the first one is here
            is_here = not self.hosts
            self.hosts[name] = Host(name, num_slots, is_here=is_here)
        host = self.hosts[name]
        host.agent = Agent(self, host)
        return host.agent

    def _agent_of(self, name: str) -> Agent:
        host = self.hosts[name]
        assert host.agent is not None, name
        return host.agent

    def _order(
        self, agent: Agent, call: Callable[..., Any], *given: Any
    ) -> None:
        if agent.host.is_here:
            call(*given)
        elif agent.has_link:
            agent.to_agent.carry(call, *given)

    def _signal(
        self, host: Host, number: int, ranks: Sequence[int] | None
    ) -> None:
        agent = host.agent
        if agent is None or agent.place is None:
            return
        own = agent.place.ranks()
        chosen = None if ranks is None else [r for r in ranks if r in own]
        if chosen is None or chosen:
            self._order(agent, agent.signal, number, chosen)

    def _start_host(self, name: str, num_slots: int) -> None:
        agent = self._agent(name, num_slots)
        if not self.chance(0.1):  # else it never comes
            self.after(0.5 + 3.0 * self.adversary.random(), self._came, agent,
                       num_slots)  # fmt: skip

    def host_comes(self, name: str, num_slots: int) -> None:
        """Somebody has started an agent, which hvdrun has not asked for."""
        host = self.hosts.get(name)
        agent = None if host is None else host.agent
        is_there = agent is not None and agent.is_known
        is_cut = host is not None and host.is_cut
        if is_there or is_cut or not self.policy.takes_hosts():
            return
        agent = self._agent(name, num_slots)
        agent.has_link = self.is_touched = True
        self.policy.host_came(name, num_slots)

    def _came(self, agent: Agent, num_slots: int) -> None:
        self.is_touched = True
        host = agent.host
        if not agent.is_known or host.agent is not agent:
            return
        now = self.clock.now
        if host.is_cut or self.chance(0.1):
            self.policy.host_did_not_come(host.name, "ssh failed", now)
        else:
            agent.has_link = True
            self.policy.host_came(host.name, num_slots)

    def _end_host(self, name: str) -> None:
        agent = self._agent_of(name)
        self._order(agent, agent.kill_all)
        agent.is_known = agent.has_link = False
        self.hosts[name].agent = None

    def link_ended(self, agent: Agent, *, may_run: bool = False) -> None:
        """Hvdrun loses the link to an agent."""
        if not agent.has_link or agent.host.is_here:
            return
        self.judge.check_generation()  # it may have formed without this
        self.is_touched = True
        agent.has_link = False
        name, now = agent.host.name, self.clock.now
        self.trace(f"host {name} was lost, may_run={may_run}")
        agent.is_silent = may_run
        agent.is_known = False
        agent.host.lost.append(agent)
        self.policy.host_was_lost(name, now, may_run=may_run)
        self._act()
        ranks = self.policy.ranks
        numbers = () if agent.place is None else agent.place.ranks()
        for number in numbers:
            if not ranks[number].has_ended:
                self.judge.blamed(number)
                ranks[number].is_lost = True
                ranks[number].exit_status = 1
                self.policy.exited(number, now)

    def cut(self, hosts: Sequence[Host]) -> None:
        """Cuts hosts off, which still reach each other."""
        self.trace(f"cut: {' '.join(h.name for h in hosts)}")
        for host in hosts:
            host.cut_at = self.clock.now
            host.num_cuts += 1
            for process in self.processes.values():
                if process.agent.host is host:
                    self.judge.blamed(process.number)
            for call in (self._hvdrun_times_out, self._agent_times_out):
                seconds = self._silent_seconds()
                self.after(seconds, call, host, host.num_cuts, host.agent)
        self._tell_groups()
        self.after(self._silent_seconds(), self._core_times_out)

    def _silent_seconds(self) -> float:
        return self.adversary.heartbeat + self.adversary.random()

    def _hvdrun_times_out(
        self, host: Host, number: int, agent: Agent | None
    ) -> None:
        if host.is_cut and host.num_cuts == number and agent is not None:
            self.link_ended(agent, may_run=True)

    def _agent_times_out(
        self, host: Host, number: int, agent: Agent | None
    ) -> None:
        if host.is_cut and host.num_cuts == number and agent is not None:
            agent.lose_job()

    def _core_times_out(self) -> None:
        for group in list(self.groups.values()):
            if not group.is_broken:
                group.fell_silent()

    def mend(self, hosts: Sequence[Host]) -> None:
        """Lets hosts reach the others again."""
        self.trace(f"mended: {' '.join(h.name for h in hosts)}")
        for host in hosts:
            seconds = self.clock.now - (host.cut_at or self.clock.now)
            host.cut_at = None
            while host.held:
                call, given = host.held.popleft()
                call(*given)
            while host.lost:  # hvdrun has hung up
                host.lost.pop().lose_job()
            if host.agent is not None and not host.agent.is_alive:
                may_run = was_silent(seconds, self.adversary.heartbeat)
                self.link_ended(host.agent, may_run=may_run)
        self._tell_groups()

    def _tell_groups(self) -> None:
        for group in list(self.groups.values()):
            group.network_changed()

    def agent_signalled(self, name: str, number: int) -> None:
        """An agent has got a signal, and tells hvdrun."""
        self._agent_of(name).tell(self._was_signalled, name, number)

    def _was_signalled(self, name: str, number: int) -> None:
        if self.policy.host_was_signalled(name, number, self.clock.now):
            self.interrupt(number)

    def named(self, slots: dict[str, int]) -> None:
        """A program has named hosts."""
        self.trace(f"named: {slots}")
        self.is_touched = True
        self.policy.hosts_were_named(slots, self.clock.now)

    def freeze(self, seconds: float) -> None:
        """Hvdrun does nothing for a while."""
        self.trace(f"hvdrun does nothing for {seconds:.1f} s")
        self.frozen_seconds += seconds
        self._freezes_until = self.clock.now + seconds

    def interrupt(self, number: int) -> None:
        """Hvdrun gets a signal."""
        self.trace(f"signal {number}")
        self.is_touched = True
        self.judge.was_interrupted = True
        self.judge.note_end()
        self.policy.interrupted(number, self.clock.now)
        for host in self.hosts.values():
            self._signal(host, number, None)

    # ---- Processes ----

    def new_process(self, number: int, agent: Agent) -> Process:
        """Returns a process that was just started."""
        if agent.host.num_cuts:
            self.judge.blamed(number)
        return Process(self, number, agent)

    def rank_started(self, number: int) -> None:
        """An agent tells of a process."""
        self.policy.ranks[number].pid = 1000 + number

    def rank_exited(self, number: int, status: int, killed_by: int) -> None:
        """An agent tells that a process has ended."""
        rank = self.policy.ranks[number]
        if rank.has_ended:
            return
        rank.exit_status = 128 + killed_by if killed_by else status
        rank.signal = killed_by or None
        self.trace(f"rank {number} ended: {rank.exit_status}")
        if not self.is_elastic and rank.exit_status:
            self.judge.note_end()
        self.policy.exited(number, self.clock.now)

    def report(
        self, process: Process, told: Report, taken: Callable[[], None]
    ) -> None:
        """A process tells something of itself."""
        size = 0 if self.is_elastic else len(self.policy.ranks)
        identity = Identity(
            Role.REPORTER, process.number, size, process.generation,
            1000 + process.number, host=process.agent.host.name,
        )  # fmt: skip
        if self.policy.generations.refusal(identity) is None:
            self.trace(f"rank {process.number} reports {told}")
            self.is_touched = True
            self.policy.reported(told, self.clock.now)
        taken()

    def straggles(self, process: Process) -> None:
        """Rank 0 tells of a slow one."""
        group = process.group
        assert group is not None
        (rank,) = [r for r, p in group.members.items() if p is process]
        process.tell(ReportKind.STRAGGLER, "is slow", rank=rank)

    # ---- Groups ----

    def group(self, generation: int, size: int) -> Group:
        """Returns the ranks of a generation."""
        if generation not in self.groups:
            self.groups[generation] = Group(self, generation, size)
        return self.groups[generation]


def run(seed: int, *, traces: bool = False) -> int:
    """Runs the job of a seed; returns its exit status.

    Raises:
        ViolationError: Something did not hold; the text has the seed.
    """
    try:
        return Job(seed, traces=traces).run()
    except Exception as error:
        kind = type(error).__name__
        raise ViolationError(f"seed {seed}: {kind}: {error}") from error
