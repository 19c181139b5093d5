"""Hosts of a simulated job: the network to them, their agents and ranks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from simulation.job import Job
    from simulation.processes import Process

# What an agent gives its ranks when it has lost the job (`run/hosts/agent.py`).
_LAST_SECONDS = 1.0


class Pipe:
    """Carries messages between hvdrun and a host, in their order.

    Both directions have one of their own. A host that is cut off gets its
    messages when the network is mended.
    """

    def __init__(self, job: Job, host: Host) -> None:
        self._job = job
        self._host = host
        self._last_at = 0.0

    def carry(self, call: Callable[..., Any], *given: Any) -> None:
        """Calls a function at the other end, after a while."""
        job = self._job
        at = max(self._last_at, job.clock.now + job.delay(self._host))
        self._last_at = at
        job.clock.at(at, self._arrive, call, given)

    def _arrive(self, call: Callable[..., Any], given: Any) -> None:
        if self._host.is_cut:
            self._host.held.append((call, given))
        else:
            call(*given)


class Host:
    """A machine. The network to it may be cut, for all that runs there."""

    def __init__(self, name: str, num_slots: int, *, is_here: bool) -> None:
        self.name = name
        self.num_slots = num_slots
        self.is_here = is_here
        self.cut_at: float | None = None
        self.num_cuts = 0
        self.held: deque[tuple[Callable[..., Any], Any]] = deque()
        self.agent: Agent | None = None  # the one that hvdrun knows
        self.lost: list[Agent] = []  # that may not know it yet

    @property
    def is_cut(self) -> bool:
        """Whether nothing gets to it now."""
        return self.cut_at is not None


class Agent:
    """What starts the ranks of a host; on that of hvdrun, hvdrun itself."""

    def __init__(self, job: Job, host: Host) -> None:
        self.host = host
        self.processes: list[Process] = []
        self.place: Any = None  # the last one that the policy has given
        self.is_alive = True
        self.is_known = True  # hvdrun waits for it, or has a link to it
        self.has_link = host.is_here
        self.is_silent = False  # hvdrun has lost it, and it may still run
        self._job = job
        self.to_agent = Pipe(job, host)
        self.to_job = Pipe(job, host)

    def start(self, numbers: list[int]) -> None:
        """Starts ranks, as hvdrun has told."""
        if self.is_alive:
            for number in numbers:
                self.processes.append(self._job.new_process(number, self))

    def tell(self, call: Callable[..., Any], *given: Any) -> None:
        """Tells hvdrun something, if it still listens then."""
        self.to_job.carry(self._heard, call, given)

    def _heard(self, call: Callable[..., Any], given: Any) -> None:
        if self.has_link:
            self._job.is_touched = True
            call(*given)

    def signal(self, number: int, ranks: list[int] | None) -> None:
        """Signals ranks; None: all."""
        for process in self.processes:
            if process.is_alive and (ranks is None or process.number in ranks):
                process.signalled(number)

    def lose_job(self) -> None:
        """Ends, for the link to hvdrun is gone; its ranks soon end as well."""
        if self.is_alive:
            self.is_alive = False
            at = self._job.clock.now + _LAST_SECONDS
            self._job.clock.at(at, self.kill_all)

    def kill_all(self) -> None:
        """Ends with all its ranks."""
        self.is_alive = False
        for process in self.processes:
            process.end(killed_by=9)
