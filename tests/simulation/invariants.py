"""What must hold in each simulated job."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hvd_keras._job.hosts.partition import may_go_on

if TYPE_CHECKING:
    from simulation.groups import Group
    from simulation.job import Job
    from simulation.processes import Process


class ViolationError(Exception):
    """Something has happened that must not."""


def check(holds: bool, what: str) -> None:
    """Raises if something does not hold."""
    if not holds:
        raise ViolationError(what)


class Judge:
    """Watches one job.

    Attributes:
        most_behind: How many rows a rank may be behind the others.
        was_interrupted: Whether hvdrun has got a signal.
        must_end_well: Whether nothing keeps the ranks from doing all rows.
    """

    def __init__(self, job: Job) -> None:
        self.most_behind = 0
        self.was_interrupted = False
        self.must_end_well = False
        self._job = job
        self._has_finished = False
        self._culprits: set[int] = set()
        self._rows = 0  # that the last group has done
        self._trains: Group | None = None  # that group
        self._last: dict[
            int, int
        ] = {}  # ranks by member of the last generation
        self._last_generation = 0
        self._ends_at: float | None = None

    def blamed(self, number: int) -> None:
        """Notes that the adversary made a rank fail."""
        self._culprits.add(number)

    # ---- Who trains ----

    def begins_anew(self) -> None:
        """Checks that training may begin anew."""
        for process in self._job.processes.values():
            check(
                process.done is None
                or not process.acts()
                or process.is_leaving
                or process.agent.is_silent
                or not process.agent.is_alive,
                f"training begins anew without rank {process.number}",
            )
        self._rows = 0

    def trains(self, group: Group) -> None:
        """Checks that a group may train now."""
        self._job.trace(
            f"generation {group.generation} trains from row {group.base}"
        )
        check(
            self._rows - self.most_behind <= group.base <= self._rows,
            f"rows {self._rows} became {group.base}",
        )
        self._rows, self._trains = group.base, group
        self.most_behind = max(self.most_behind, group.size)
        for other in self._job.groups.values():
            check(
                other is group or other.runs_since is None,
                f"{other.generation} and {group.generation} train at once",
            )
            self.check_one_side(other)

    def stops(self, group: Group) -> None:
        """Notes how many rows a group has done."""
        if group is self._trains:
            check(group.base >= self._rows, "rows were lost")
            self._rows = group.base

    def finished(self, group: Group) -> None:
        """Notes that a group has done all rows."""
        self._job.trace(f"generation {group.generation} has done all")
        self._has_finished = True
        self._rows = self._job.total_rows

    def check_one_side(self, group: Group) -> None:
        """Checks that nobody goes on whom hvdrun goes on without."""
        for process in group.sovereign:
            check(
                not process.is_alive
                or not process.agent.is_alive
                or self._last_generation <= group.generation
                or process.number in self._last
                or process.generation > group.generation,
                f"two sides go on: rank {process.number} in {group.generation}",
            )

    def was_answered(self, process: Process, asked_at: float) -> None:
        """Checks that a rank that was in a generation did not wait too long."""
        job, seconds = self._job, self._job.clock.now - asked_at
        if process.generation == 0 or not job.is_elastic:
            return
        most = job.adversary.patience + job.spec.elastic.timeout + 5.0
        # A host that is cut off hears nothing; hvdrun may be slow.
        most += 3.0 * job.adversary.heartbeat + job.frozen_seconds
        check(seconds < most, f"rank {process.number} waited {seconds:.1f} s")

    # ---- What hvdrun decides ----

    def _silent_ranks(self) -> list[int]:
        return [
            rank
            for number, rank in self._last.items()
            if self._job.processes[number].agent.is_silent
        ]

    def check_generation(self) -> None:
        """Checks that hvdrun may go on, if a new generation has formed."""
        policy = self._job.policy
        if (
            not self._job.is_elastic
            or policy.generations.last() == self._last_generation
        ):
            return
        check(
            not self._last or may_go_on(self._silent_ranks(), len(self._last)),
            "hvdrun goes on, though the other side may",
        )
        self._last = dict(policy.members)
        self._last_generation = policy.generations.last()

    def check_why(self, text: str) -> None:
        """Checks that hvdrun may end the job for this reason."""
        self.note_end()
        if "fell silent" in text:
            check(
                not may_go_on(self._silent_ranks(), len(self._last)),
                "hvdrun stops, though only its side may go on",
            )
            return
        count, least = map(int, re.findall(r"\d+", text)[:2])
        check(count < least, f"{count} are not fewer than {least}")
        num_waiting = self._job.policy.generations.num_waiting()
        check(num_waiting < least, f"{num_waiting} could go on")

    def note_end(self) -> None:
        """Notes that the job has to end."""
        if self._ends_at is None:
            self._ends_at = self._job.clock.now

    def check_end(self) -> int:
        """Checks how the job has ended; returns its exit status."""
        job, now = self._job, self._job.clock.now
        ending = job.policy.ending(now)
        status, named = ending.exit_status, ending.blame.rank
        job.trace(f"ended with {status}: {ending.text}")
        if self._ends_at is not None:
            # A host that falls silent meanwhile is waited for, too.
            most = 2 * job.spec.grace + 3.0 + job.adversary.heartbeat + 3.0
            most += job.frozen_seconds
            seconds = now - self._ends_at
            check(seconds < most, f"the end took {seconds:.1f} s")
        check(status == 0 or not self.must_end_well, f"status {status}")
        if status == 0:
            check(self._has_finished, "status 0, but rows are left")
            check(self._rows == job.total_rows, "rows were lost at the end")
        elif named is not None and not self.was_interrupted:
            error = job.policy.ends.error(named)
            others = {"JobEndedError", "StalledError"}
            if any(host.num_cuts for host in job.hosts.values()):
                others.add("PeerLostError")  # the network may be why
            check(
                named in self._culprits or error.partition(":")[0] in others,
                f"rank {named} is blamed: {error}",
            )
        return int(status)
