"""The policy of a job whose ranks all end when one fails."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from hvd_keras._records.blame import Blame
from hvd_keras._rendezvous.fixed_generations import FixedGenerations
from hvd_keras._rendezvous.protocol import Report, ReportKind
from hvd_keras.run.hosts.placement import Plan
from hvd_keras.run.hosts.planning import check_shown_ranks
from hvd_keras.run.job.grace import Grace
from hvd_keras.run.job.outcome import Ends
from hvd_keras.run.job.policy import (
    Action,
    Ending,
    HostSlots,
    Say,
    Start,
    Survey,
)
from hvd_keras.run.ranks.rank import Rank
from hvd_keras.run.spec import JobSpec


class Fixed:
    """See `Policy`."""

    def __init__(self, spec: JobSpec, plan: Plan) -> None:
        self.ranks: list[Rank] = []
        self.ends = Ends(self.ranks)
        self.generations = FixedGenerations(0)  # none before it begins
        self.actions: deque[Action] = deque()
        self.members = None
        self._spec = spec
        self._plan = plan
        self._first_failed: int | None = None  # the first that we know of
        self._grace = Grace(spec.grace, self.ranks, self.actions.append)

    def begin(self, hosts: Sequence[HostSlots], now: float) -> None:
        places = self._plan.places([host.num_slots for host in hosts])
        size = places[0].size
        check_shown_ranks(self._spec, size)
        self.generations.set_size(size)
        placed = list(zip(hosts, places, strict=True))
        for host, place in placed:
            name = "" if self._plan.is_of_one_host else host.name
            for rank in place.ranks():
                self.ranks.append(Rank(rank, name))
                self.generations.rank_started(rank)
        # The other hosts first, for they need longer.
        for host, place in sorted(placed, key=lambda one: one[0].is_here):
            self.actions.append(Start(host.name, place, place.ranks()))

    def reported(self, told: Report, now: float) -> None:
        # A rank reports that it leaves before its peers can notice.
        self.ends.note_leaving(told.rank, told)
        if told.kind in (ReportKind.FAILS, ReportKind.PREEMPTED):
            self.ends.note(told)
            self._note_failure(told.rank, now, has_ended=False)

    def exited(self, number: int, now: float) -> None:
        rank = self.ranks[number]
        self.ends.note_leaving(number)
        self.generations.rank_exited(number, rank.describe_exit())
        if self._spec.output.is_verbose:
            self.actions.append(Say(f"rank {number} {rank.describe_exit()}"))
        if rank.exit_status != 0:
            self._note_failure(number, now, has_ended=True)

    def _note_failure(self, rank: int, now: float, *, has_ended: bool) -> None:
        if self._first_failed is None:
            self._first_failed = rank
            if not self.ends.was_preempted(rank):
                self.actions.append(Survey())
        if rank == self._first_failed:
            # It may end slowly, saving its work. The grace time of the others
            # begins when it has ended, or after as long a time for it.
            self._grace.begin(now, 1 if has_ended else 2)

    def interrupted(self, number: int, now: float) -> None:
        if self._first_failed is None:
            self.ends.interruption = self.ends.interruption or number
        elif self.ends.interruption is None:
            self.ends.note_signal()
        self._grace.begin(now)

    def _ignore(self, *event: object, **more: object) -> None:
        """Hosts come and go in elastic jobs alone."""

    host_came = host_did_not_come = host_was_lost = hosts_were_named = _ignore

    def host_was_signalled(self, host: str, number: int, now: float) -> bool:
        return True

    def step(self, now: float) -> None:
        self._grace.step(now)

    def next_deadline(self, now: float) -> float | None:
        return self._grace.next_deadline()

    def goes_on(self) -> bool:
        return not all(rank.has_ended for rank in self.ranks)

    def takes_hosts(self) -> bool:
        return False

    def ending(self, seconds: float) -> Ending:
        found = self.ends.blame()
        status = self.ends.exit_status(found)
        if found.rank is None:
            return Ending(found, status)
        if self.ends.was_preempted(found.rank):
            saved = self.ends.error(found.rank)
            return Ending(Blame(), status, f"{saved}; run it again to go on")
        text = self.ends.describe(found, seconds)
        return Ending(found, status, text, has_table=True, has_verdict=True)
