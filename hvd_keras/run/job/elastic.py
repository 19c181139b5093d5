"""The policy of an elastic job: who is started again, and when it ends.

Here every process is a *member* with a number that is never used again. What
other modules of hvdrun call a rank is such a number. The rendezvous server
gives members their ranks, which change with each generation.
"""

from __future__ import annotations

import signal
import sys
from collections import deque
from collections.abc import Collection, Mapping, Sequence

from hvd_keras._records.blame import Blame
from hvd_keras._rendezvous.elastic_generations import ElasticGenerations
from hvd_keras._rendezvous.protocol import Report, ReportKind
from hvd_keras._rendezvous.roster import Member
from hvd_keras.config import Config
from hvd_keras.run.hosts.placement import Plan
from hvd_keras.run.job.fleet import Fleet
from hvd_keras.run.job.grace import Grace
from hvd_keras.run.job.outcome import Ends
from hvd_keras.run.job.own_errors import OwnErrors
from hvd_keras.run.job.policy import Action, Ending, HostSlots, Say, Signal
from hvd_keras.run.job.slots import Slot, Slots
from hvd_keras.run.ranks.rank import Rank
from hvd_keras.run.screen import report
from hvd_keras.run.spec import JobSpec

# Until another process takes the place of one that was too slow: what slows it
# may pass.
_SECONDS_AFTER_STRAGGLER = 60.0


class Elastic:
    """See `Policy`. It hears of the members from its generations, too."""

    def __init__(self, spec: JobSpec, plan: Plan, config: Config) -> None:
        assert spec.elastic is not None
        self.ranks: list[Rank] = []
        self.ends = Ends(self.ranks)
        warns = not config.stall_check_disable
        self.generations = ElasticGenerations(
            self,
            min_size=spec.elastic.min_ranks,
            patience_seconds=config.start_timeout_seconds,
            warning_seconds=config.stall_warning_seconds if warns else 0.0,
        )
        self.actions: deque[Action] = deque()
        self._spec = spec
        self._elastic = elastic = spec.elastic
        self._plan = plan
        self._config = config
        self._grace = Grace(spec.grace, self.ranks, self.actions.append)
        self._slots = Slots(
            elastic.max_restarts,
            elastic.restart_delay,
            elastic.blacklist_cooldown or (0.0, 0.0),
        )
        self._fleet = Fleet(
            self._slots,
            plan,
            self.actions.append,
            patience_seconds=config.start_timeout_seconds,
            namer="the discovery script"
            if spec.provision is None
            else spec.provision.name,
            # A program that names the hosts knows better.
            tries_lost_again=elastic.blacklist_cooldown is not None
            and elastic.host_discovery_script is None,
        )
        self._max_size = 0
        self._leaving: set[int] = set()  # on purpose
        self._evicted: set[int] = set()  # they had to leave, for they are slow
        self.members: dict[int, int] = {}  # their ranks in the last generation
        self._kill_at: dict[int, float] = {}  # failing members
        self._own_errors = OwnErrors()
        self._is_prepared = False  # the program takes new members in
        self._has_begun = False  # a member trains, or has trained
        self._is_done = False  # a member has finished
        self._is_over = False  # there are too few members
        self._was_interrupted = False

    def _say(self, text: str) -> None:
        self.actions.append(Say(text))

    # ---- Start ----

    def begin(self, hosts: Sequence[HostSlots], now: float) -> None:
        for host in hosts:
            self._fleet.take_in(host.name, host.num_slots, is_here=host.is_here)
        free = self._slots.free(now)
        size = self._plan.num_ranks or len(free)
        self._max_size = self._elastic.max_ranks or size
        if self._plan.may_grow and self._elastic.max_ranks is None:
            self._max_size = sys.maxsize
        self._fill(free[: min(size, self._max_size)])

    def _fill(self, slots: Sequence[Slot]) -> None:
        """Starts a member in each of some free slots."""
        num_present = len(self.generations.present())
        size = num_present + len(slots)
        # Whether members train, and take newcomers in.
        runs = self._is_prepared and bool(self.generations.survivors())
        started: dict[str, dict[int, int]] = {}  # by host
        newcomers: dict[str, list[tuple[int, int, int, int]]] = {}
        for likely_rank, slot in enumerate(slots, start=num_present):
            host, number, index = slot.host, len(self.ranks), -1
            if runs:
                index = self._free_index(host)
                newcomers.setdefault(host, []).append(
                    (number, max(1, likely_rank), size, index)
                )
            name = "" if self._plan.is_of_one_host else host
            self.ranks.append(Rank(number, name, index=index))
            self._slots.hold(slot, number)
            self.generations.member_started(
                number, host, index, is_beside_server=self._fleet.is_here(host)
            )
            started.setdefault(host, {})[number] = slot.index
        # The other hosts first, for they need longer.
        for host in sorted(started, key=self._fleet.is_here):
            self._fleet.start(host, started[host], newcomers.get(host, ()))

    def _free_index(self, host: str) -> int:
        """Returns the lowest slot of a host that no running member has."""
        taken = {self.ranks[n].index for n in self._slots.holders(host)}
        return min(set(range(len(taken) + 1)) - taken)

    # ---- As time goes by ----

    def goes_on(self) -> bool:
        if not all(rank.has_ended for rank in self.ranks):
            return True
        return self.takes_hosts() and self._slots.num_pending() > 0

    def takes_hosts(self) -> bool:
        ends = self._is_done or self._is_over or self._was_interrupted
        return not ends

    def step(self, now: float) -> None:
        self._grace.step(now)
        if not self.takes_hosts():
            self._slots.close()
            self._fleet.close()
        running = {r.rank for r in self.ranks if not r.has_ended}
        self._fleet.step(running, now)
        present = len(self.generations.present())
        free = self._slots.free(now)[: max(0, self._max_size - present)]
        if free and self.generations.is_settled():
            self._fill(free)
        self.generations.num_starting = self._num_coming()
        self.generations.go_on(now)
        for number, at in list(self._kill_at.items()):
            if at <= now:
                del self._kill_at[number]
                self._kill(number, "still runs after the grace time")
        self._end_if_short(now)
        self._note_end(now)

    def next_deadline(self, now: float) -> float | None:
        deadlines = [
            self._grace.next_deadline(),
            self._slots.next_deadline(now),
            self._fleet.next_deadline(),
            self._short_deadline(),
            *self._kill_at.values(),
        ]
        return min((d for d in deadlines if d is not None), default=None)

    def _num_coming(self) -> int:
        """How many processes will start, also in place of failing ones."""
        return self._slots.num_pending() + len(self._kill_at)

    def _short_deadline(self) -> float | None:
        """Returns when too few members end the job; None: they do not."""
        since = self.generations.short_since
        if since is None or not self.takes_hosts():
            return None
        present = len(self.generations.present())
        num_coming = self._num_coming()
        if present + num_coming == 0:
            return None  # all leave, or fail; the loop notices the end
        is_enough = present + num_coming >= self.generations.min_size
        may_wait = is_enough or self._fleet.may_grow()
        timeout = self._elastic.timeout if may_wait else 0.0
        return since + timeout

    def _end_if_short(self, now: float) -> None:
        """Ends the job if it has had too few members for too long."""
        deadline, since = self._short_deadline(), self.generations.short_since
        if deadline is None or since is None or now < deadline:
            return
        number, what = len(self.generations.present()), "are left"
        if number >= self.generations.min_size:  # some are still starting
            number, what = self.generations.num_waiting(), "have come"
        why = (
            f"{number} of at least {self.generations.min_size} members "
            f"(--min-np) {what}"
        )
        if now - since >= self._elastic.timeout:
            why += f", for {now - since:.0f} s (--elastic-timeout)"
        else:
            why += ", and no others will come"
        self.generations.end_job(f"{why}.")

    def _note_end(self, now: float) -> None:
        """Gives members that do not hear of the end the grace time."""
        if self.generations.why_ended and not self._is_over:
            self._is_over = True
            self._say(f"the job ends: {self.generations.why_ended}")
            self._grace.begin(now)

    def interrupted(self, number: int, now: float) -> None:
        self._was_interrupted = True
        self.ends.interruption = self.ends.interruption or number
        self._grace.begin(now)

    # ---- What the server says ----

    def formed(self, generation: int, members: Sequence[Member]) -> None:
        self.members = {m.number: rank for rank, m in enumerate(members)}
        for member in members:
            self.ranks[member.number].generation = generation
            self.ranks[member.number].index = member.slot
        numbers = ", ".join(map(str, self.members))
        size = len(members)
        self._say(
            f"generation {generation} formed: {size} rank{'s' * (size > 1)}, "
            f"member{'s' * (size > 1)} {numbers}"
        )

    def member_waits(self, member: Member) -> None:
        self._say(f"member {member.number} waits to join")

    def members_are_awaited(self, members: Sequence[Member]) -> None:
        names = ", ".join(
            f"{one.number} ({self.ranks[one.number].process})"
            for one in members
        )
        whom = f"member{'s' * (len(members) > 1)} {names}"
        if not members:
            whom = (
                f"more members: {self.generations.num_waiting()} of at least "
                f"{self.generations.min_size} (--min-np) are there"
            )
        self._say(
            f"the next generation has waited "
            f"{self._config.stall_warning_seconds:g} s for {whom}"
        )

    def members_are_late(self, members: Sequence[Member]) -> None:
        seconds = self._config.start_timeout_seconds
        for member in members:
            self._kill(
                member.number,
                f"did not come within {seconds:g} s of the others "
                "(HVD_START_TIMEOUT)",
            )

    def _kill(self, number: int, why: str = "") -> None:
        """Kills a member, and says why."""
        if why:
            process = self.ranks[number].process
            self._say(f"member {number} ({process}) {why}; it is killed")
        self.actions.append(Signal(signal.SIGKILL, [number]))

    # ---- Hosts ----

    def host_came(self, host: str, num_slots: int) -> None:
        if self.ranks and self.takes_hosts():
            self._say(
                f"host {host} has come, with {num_slots} "
                f"slot{'s' * (num_slots > 1)}"
            )
            self._fleet.take_in(host, num_slots)

    def host_did_not_come(self, host: str, why: str, now: float) -> None:
        self._fleet.give_up(host, why, now)

    def host_was_signalled(self, host: str, number: int, now: float) -> bool:
        if number == signal.SIGUSR2:  # it asks for a verdict
            return True
        why = f"its agent got {report.signal_name(number)}"
        self.generations.ask_to_leave(self._fleet.let_go(host, why), now)
        return False

    def host_was_lost(self, host: str, now: float, *, may_run: bool) -> None:
        members = self._fleet.lose(host, now)
        if may_run:
            self.generations.host_fell_silent(members)

    def hosts_were_named(self, slots: Mapping[str, int], now: float) -> None:
        if self.takes_hosts():
            self.generations.ask_to_leave(self._fleet.use(slots, now), now)

    # ---- Who ends ----

    def reported(self, told: Report, now: float) -> None:
        number = told.rank
        if told.kind == ReportKind.ELASTIC:
            self._is_prepared = True
        elif told.kind == ReportKind.BEGINS:
            self._note_begin()
        elif told.kind == ReportKind.STRAGGLER:
            self._note_straggler(told, now)
        else:
            self.ends.note_leaving(number, told)
        if told.kind == ReportKind.LEAVES_SOON:
            self._say(f"member {number} was told to leave")
            self.generations.member_leaves(number, now, soon=True)
        elif told.kind == ReportKind.LEAVES:
            self._leaving.add(number)
            self._say(f"member {number} leaves: {told.text}")
            self.generations.member_leaves(number, now, soon=False)
        elif told.kind in (ReportKind.FAILS, ReportKind.PREEMPTED):
            self.ends.note(told)
            self.generations.member_leaves(number, now, soon=False)
            # It may end slowly, saving its work.
            self._kill_at.setdefault(number, now + 2 * self._spec.grace)

    def _note_straggler(self, told: Report, now: float) -> None:
        """Tells of a slow member, and has it leave if the user wants that."""
        if told.rank >= len(self.members):
            return
        member = list(self.members)[told.rank]
        if member in self._evicted:
            return
        what = f"member {member} (rank {told.rank}) {told.text}"
        evicts = self._elastic.straggler_factor is not None
        if evicts and len(self.members) > self.generations.min_size:
            self._evicted.add(member)
            self._say(f"{what}; it has to leave (--evict-stragglers)")
            self.generations.ask_to_leave([member], now)
        else:
            self._say(what)

    def _note_begin(self) -> None:
        if self._has_begun:
            self._say(
                "no rank that has trained is left: training begins anew. "
                "Give `directory=` to `hvd.elastic.fit` to keep commits"
            )
        self._has_begun = True

    def exited(self, number: int, now: float) -> None:
        rank = self.ranks[number]
        self.ends.note_leaving(number)
        self._kill_at.pop(number, None)
        has_failed = rank.exit_status != 0
        if has_failed or self._spec.output.is_verbose:
            self._say_exit(rank)
        was_evicted = number in self._evicted
        slot = self._slots.release(
            number, closes=not has_failed and not was_evicted
        )
        if has_failed:
            self._note_error(rank)
            if slot is not None and self.takes_hosts() and not slot.is_closed:
                self._restart(slot, rank, now)
        elif was_evicted and slot is not None and self.takes_hosts():
            self._slots.reopen(slot, now + _SECONDS_AFTER_STRAGGLER)
        elif number not in self._leaving and rank.generation:
            self._note_finish()
        self.generations.num_starting = self._num_coming()
        self.generations.member_ended(number, rank.describe_exit(), now)

    def _say_exit(self, rank: Rank) -> None:
        reason = self.ends.error(rank.rank)
        self._say(
            f"member {rank.rank} {rank.describe_exit()}"
            + (f": {reason}" if reason else "")
        )

    def _note_error(self, rank: Rank) -> None:
        """Starts no more if the program is at fault, and not a machine."""
        told = self.ends.error(rank.rank)
        if self.ends.was_preempted(rank.rank):
            told = ""
        self._own_errors.note(rank.rank, rank.generation, told)
        if not self.takes_hosts():
            return
        if self._own_errors.have_all(self.members):
            why = "all members have ended by their own errors"
        elif self._own_errors.has_repeated(rank.rank, told):
            why = f"member {rank.rank} has repeated the error of an earlier one"
        else:
            return
        self._slots.close()
        self._say(f"{why}; no others are started")

    def _restart(self, slot: Slot, rank: Rank, now: float) -> None:
        slots = self._slots
        num_before = slots.num_restarts
        if not slots.restart(slot, rank.generation, now):
            if slots.max_restarts:
                self._say(
                    f"no restarts are left (--max-restarts "
                    f"{slots.max_restarts})"
                )
        elif slots.num_restarts > num_before:
            self._say(
                f"restart {slots.num_restarts} of {slots.max_restarts} on host "
                f"{slot.host} in {slots.free_at(slot) - now:g} s"
            )

    def _note_finish(self) -> None:
        """Takes no newcomers any more, for a member has finished."""
        if self._is_done:
            return
        self._is_done = True
        self._slots.close()
        self.generations.takes_newcomers = False
        self.generations.min_size = 1
        for rank in self.ranks:
            if not rank.generation and not rank.has_ended:
                rank.sent = signal.SIGKILL
                self._kill(rank.rank)

    # ---- The end ----

    def _blame(self) -> Blame:
        """Returns who has ended the job; earlier failures did not."""
        last: Collection[int] = self.members or range(len(self.ranks))
        if self._has_finished():
            # Losing a member is no failure, but an error that it ends with is.
            last = [
                number
                for number in last
                if self.ranks[number].signal is None
                and not self.ranks[number].is_lost
            ]
        return self._blame_among(last)

    def _blame_among(self, numbers: Collection[int]) -> Blame:
        """Blames nobody for being slow to hear that the job ends by itself."""
        ends = self._is_over and not self._was_interrupted
        return self.ends.blame(
            [
                number
                for number in numbers
                if not ends
                or self.ranks[number].sent is None
                or self.ends.error(number)
            ]
        )

    def _has_finished(self) -> bool:
        return any(
            rank.exit_status == 0 and rank.rank not in self._leaving
            for rank in self.ranks
        )

    def _exit_status(self, found: Blame) -> int:
        if found.rank is not None:
            return self.ends.exit_status(found)
        leaves = self._leaving and not self._has_finished()
        if leaves and not self._is_over:
            return self._config.requeue_exit_code
        return int(self._is_over)

    def ending(self, seconds: float) -> Ending:
        found = self._blame()
        status, text = self._exit_status(found), ""
        if status == self._config.requeue_exit_code:
            text = "all members have left; run it again to go on"
            return Ending(found, status, text)
        if status and found.rank is None:
            found = self._blame_among(range(len(self.ranks)))
        if status and found.rank is not None:
            text = self.ends.describe(found, seconds)
        return Ending(found, status, text, has_table=status != 0)
