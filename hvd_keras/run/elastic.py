"""The policy of an elastic job: who is started again, and when it ends.

Here every process is a *member* with a number that is never used again. What
other modules of hvdrun call a rank is such a number. The rendezvous server
gives members their ranks, which change with each epoch.
"""

from __future__ import annotations

import dataclasses
import signal
import socket
import sys
import time
from collections.abc import Sequence

from hvd_keras._job.bootstrap import tls
from hvd_keras._job.bootstrap.elastic_server import ElasticServer
from hvd_keras._job.bootstrap.roster import Member
from hvd_keras._job.bootstrap.wire import Report, ReportKind
from hvd_keras._observe.blame import Blame
from hvd_keras.run import report, stragglers
from hvd_keras.run.fleet import Fleet
from hvd_keras.run.hosts import RemoteHost
from hvd_keras.run.job import Job
from hvd_keras.run.link import Loss
from hvd_keras.run.outcome import Ends, Outcome
from hvd_keras.run.own_errors import OwnErrors
from hvd_keras.run.placement import Plan
from hvd_keras.run.rank import Rank
from hvd_keras.run.recruiting import Recruiter
from hvd_keras.run.slots import Slot, Slots
from hvd_keras.run.spec import JobSpec
from hvd_keras.run.standard_input import StandardInput


class ElasticJob(Job):
    """A job whose members may die, leave and come. Single-threaded."""

    _server: ElasticServer

    def __init__(
        self, spec: JobSpec, environ: dict[str, str], plan: Plan
    ) -> None:
        super().__init__(spec, environ, plan)
        assert spec.elastic is not None
        self._elastic = elastic = spec.elastic
        self._slots = Slots(
            elastic.max_restarts,
            elastic.restart_delay,
            elastic.blacklist_cooldown or (0.0, 0.0),
        )
        self._fleet = Fleet(
            self._hosts,
            self._slots,
            plan,
            patience_seconds=self._config.start_timeout_seconds,
            tries_lost_again=elastic.blacklist_cooldown is not None,
            say=self._output.say,
            new_host=self._new_host,
            runs=lambda number: not self._ranks[number].has_ended,
            ask_to_leave=lambda numbers: self._server.ask_to_leave(numbers),
        )
        self._max_size = 0
        self._leaving: set[int] = set()  # on purpose
        self._silent: set[int] = set()  # lost with their hosts, may still run
        self._last: list[int] = []  # the members of the last epoch, by rank
        self._kill_at: dict[int, float] = {}  # failing members
        self._own_errors = OwnErrors()
        self._stragglers = stragglers.Stragglers(
            elastic.straggler_factor is not None,
            self._output.say,
            lambda numbers: self._server.ask_to_leave(numbers),
        )
        self._is_prepared = False  # the program takes new members in
        self._has_begun = False  # a member trains, or has trained
        self._is_done = False  # a member has finished
        self._is_over = False  # there are too few members

    # ---- Start ----

    def _make_server(self, listener: socket.socket, size: int) -> ElasticServer:
        return ElasticServer(
            listener,
            self._secret,
            self,
            self._take_report,
            min_size=self._elastic.min_ranks,
            patience_seconds=self._config.start_timeout_seconds,
            warning_seconds=0.0
            if self._config.stall_check_disable
            else self._config.stall_warning_seconds,
            tls=tls.context(self._config, is_server=True),
            on_agent=self._take_agent,
        )

    def _start(self, stdin: StandardInput) -> None:
        self._fleet.gathering = self._gathering
        self._recruiter = Recruiter(
            self._ranks,
            self._slots,
            self._fleet,
            self._server,
            stdin,
            shows_hosts=not self._plan.is_of_one_host,
            on_failure=self.host_failed,
        )
        for host, planned in zip(self._hosts, self._plan.hosts, strict=True):
            if isinstance(host, RemoteHost):
                host.num_slots = planned.slots
                if host.facts:
                    self._fleet.take_in(host, self._num_slots(host))
            else:
                self._fleet.take_in(host, planned.slots or 0)
        free = self._slots.free(time.monotonic())
        size = self._plan.num_ranks or len(free)
        self._max_size = self._elastic.max_ranks or size
        if self._plan.may_grow and self._elastic.max_ranks is None:
            self._max_size = sys.maxsize
        self._fill(free[: min(size, self._max_size)])
        self._say_start()
        stdin.close(keeps_program=True)
        script = self._elastic.host_discovery_script
        if script is not None:
            self._fleet.discover(
                self._loop,
                script,
                self._elastic.slots_per_host,
            )

    @staticmethod
    def _num_slots(host: RemoteHost) -> int:
        return host.num_slots or int(host.facts["num_ranks"])

    def _new_host(self, name: str) -> RemoteHost:
        return RemoteHost(self._loop, self, name, self._config)

    def _say_start(self) -> None:
        if self._gathering is None:
            self._say_start_here()
        else:
            parts = [
                f"{host.name} (members {', '.join(map(str, members))})"
                for host in self._hosts
                if (members := host.place.members)
            ]
            self._output.say(
                f"{len(self._ranks)} ranks on {len(parts)} hosts: "
                f"{', '.join(parts)}"
            )
        self._output.warn_if_closed()

    def _fill(self, slots: Sequence[Slot]) -> None:
        self._recruiter.fill(slots, self._launch(), runs=self._is_running())

    def _is_running(self) -> bool:
        """Whether members of the last epoch are there, who go on."""
        if not self._is_prepared:
            return False
        return any(not m.has_left for m in self._server.survivors())

    # ---- The loop ----

    def _goes_on(self) -> bool:
        if super()._goes_on():
            return True
        return self._may_grow() and self._slots.num_pending() > 0

    def _may_grow(self) -> bool:
        ends = self._is_done or self._is_over or self._was_interrupted
        return not ends

    def _step(self) -> None:
        super()._step()
        if not self._may_grow():
            self._slots.close()
            self._fleet.close()
        self._fleet.step()
        now = time.monotonic()
        present = len(self._server.present())
        free = self._slots.free(now)[: max(0, self._max_size - present)]
        if free and self._server.is_settled():
            self._fill(free)
        self._server.num_starting = self._num_coming()
        self._server.check_members()
        for number, at in list(self._kill_at.items()):
            if at <= now:
                del self._kill_at[number]
                self._kill(number, "still runs after the grace time")
        self._end_if_short()
        self._note_end()

    def _time_left(self) -> float | None:
        found = super()._time_left()
        deadlines = [
            self._slots.next_deadline(time.monotonic()),
            self._fleet.next_deadline(),
            self._short_deadline(),
            *self._kill_at.values(),
        ]
        for deadline in deadlines:
            if deadline is not None:
                left = max(0.0, deadline - time.monotonic())
                found = left if found is None else min(found, left)
        return found

    def _num_coming(self) -> int:
        """How many processes will start, also in place of failing ones."""
        return self._slots.num_pending() + len(self._kill_at)

    def _short_deadline(self) -> float | None:
        """Returns when too few members end the job; None: they do not."""
        short = self._server.short_seconds()
        if short is None or not self._may_grow():
            return None
        present, num_coming = len(self._server.present()), self._num_coming()
        if present + num_coming == 0:
            return None  # all leave, or fail; the loop notices the end
        is_enough = present + num_coming >= self._server.min_size
        may_wait = is_enough or self._fleet.may_grow()
        timeout = self._elastic.timeout if may_wait else 0.0
        return time.monotonic() - short + timeout

    def _end_if_short(self) -> None:
        """Ends the job if it has had too few members for too long."""
        deadline, short = self._short_deadline(), self._server.short_seconds()
        if deadline is None or short is None or time.monotonic() < deadline:
            return
        why = (
            f"{len(self._server.present())} of at least "
            f"{self._server.min_size} members (--min-np) are left"
        )
        if short >= self._elastic.timeout:
            why += f", for {short:.0f} s (--elastic-timeout)"
        else:
            why += ", and no others will come"
        self._server.end_job(f"{why}.")

    def _note_end(self) -> None:
        """Gives members that do not hear of the end the grace time."""
        if self._server.why_ended and not self._is_over:
            self._is_over = True
            self._output.say(f"the job ends: {self._server.why_ended}")
            self._grace.begin()

    def _begin_survey(self) -> None:
        ranks = {number: rank for rank, number in enumerate(self._last)}
        self._inquiry.begin(is_of_failure=False, ranks=ranks)

    def _say_verdict(self) -> None:
        """Says what is wrong with the present epoch, by its ranks."""
        present = [
            dataclasses.replace(self._ranks[number], rank=rank)
            for rank, number in enumerate(self._last)
        ]
        self._inquiry.tell(present, Ends(present))

    def _shown_ranks(self) -> list[Rank]:
        return [rank for rank in self._ranks if not rank.has_ended]

    # ---- What the server says ----

    def epoch_formed(self, epoch: int, members: Sequence[Member]) -> None:
        self._last = [member.number for member in members]
        for rank, number in enumerate(self._last):
            self._ranks[number].epoch = epoch
            self._ranks[number].current_rank = rank
            self._ranks[number].index = members[rank].slot
        numbers = ", ".join(map(str, self._last))
        size = len(members)
        self._output.say(
            f"epoch {epoch} formed: {size} rank{'s' * (size > 1)}, member"
            f"{'s' * (size > 1)} {numbers}"
        )

    def member_waits(self, member: Member) -> None:
        self._output.say(f"member {member.number} waits to join")

    def members_are_awaited(self, members: Sequence[Member]) -> None:
        names = ", ".join(
            f"{one.number} ({self._ranks[one.number].process})"
            for one in members
        )
        whom = f"member{'s' * (len(members) > 1)} {names}"
        if not members:
            whom = (
                f"more members: {self._server.num_waiting()} of at least "
                f"{self._server.min_size} (--min-np) are there"
            )
        self._output.say(
            f"the next epoch has waited "
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
            process = self._ranks[number].process
            self._output.say(f"member {number} ({process}) {why}; it is killed")
        for host in self._hosts:
            if number in host.place.members:
                host.signal(signal.SIGKILL, [number], to_groups=True)

    # ---- What the hosts say ----

    def host_is_ready(self, host: RemoteHost) -> None:
        if self._ranks and self._may_grow():
            num_slots = self._num_slots(host)
            self._output.say(
                f"host {host.name} has come, with {num_slots} "
                f"slot{'s' * (num_slots > 1)}"
            )
            self._fleet.take_in(host, num_slots)

    def host_was_signalled(self, host: RemoteHost, number: int) -> None:
        if number == signal.SIGUSR2:  # it asks for a verdict
            super().host_was_signalled(host, number)
        else:
            name = report.signal_name(number)
            self._fleet.let_go(host, f"its agent got {name}")

    def host_is_lost(self, host: RemoteHost, loss: Loss) -> None:
        if self._ranks and not self._fleet.lose(host):
            return  # it has no members
        if loss.may_run:
            self._silent.update(host.place.members)
        super().host_is_lost(host, loss)

    # ---- Who ends ----

    def _on_report(self, told: Report) -> None:
        number = told.rank
        if told.kind == ReportKind.ELASTIC:
            self._is_prepared = True
        elif told.kind == ReportKind.BEGINS:
            self._note_begin()
        elif told.kind == ReportKind.STRAGGLER:
            self._stragglers.note(told, self._last, self._server.min_size)
        else:
            self._ends.note_leaving(number)
        if told.kind == ReportKind.LEAVES_SOON:
            self._output.say(f"member {number} was told to leave")
            self._server.member_leaves(number, soon=True)
        elif told.kind == ReportKind.LEAVES:
            self._leaving.add(number)
            self._output.say(f"member {number} leaves: {told.text}")
            self._server.member_leaves(number, soon=False)
        elif told.kind in (ReportKind.FAILS, ReportKind.PREEMPTED):
            self._ends.note(told)
            self._server.member_leaves(number, soon=False)
            # It may end slowly, saving its work.
            at = time.monotonic() + 2 * self._spec.grace
            self._kill_at.setdefault(number, at)

    def _note_begin(self) -> None:
        if self._has_begun:
            self._output.say(
                "no rank that has trained is left: training begins anew. "
                "Give `directory=` to `hvd.elastic.fit` to keep commits"
            )
        self._has_begun = True

    def _on_exit(self, rank: Rank) -> None:
        self._ends.note_leaving(rank.rank)
        self._kill_at.pop(rank.rank, None)
        has_failed = rank.exit_status != 0
        has_left = rank.rank in self._leaving
        if has_failed or self._spec.output.is_verbose:
            self._say_exit(rank)
        was_evicted = rank.rank in self._stragglers.evicted
        slot = self._slots.release(
            rank.rank, closes=not has_failed and not was_evicted
        )
        if has_failed:
            self._note_error(rank)
            if slot is not None and self._may_grow() and not slot.is_closed:
                self._restart(slot, rank)
        elif was_evicted and slot is not None and self._may_grow():
            self._slots.reopen(slot, time.monotonic() + stragglers.SECONDS)
        elif not has_left and rank.epoch:
            self._note_finish()
        self._server.num_starting = self._num_coming()
        self._server.member_ended(
            rank.rank,
            rank.describe_exit(),
            fell_silent=rank.rank in self._silent,
        )

    def _say_exit(self, rank: Rank) -> None:
        reason = self._ends.error(rank.rank)
        self._output.say(
            f"member {rank.rank} {rank.describe_exit()}"
            + (f": {reason}" if reason else "")
        )

    def _note_error(self, rank: Rank) -> None:
        """Starts no more if the program is at fault, and not a machine."""
        told = self._ends.error(rank.rank)
        if self._ends.was_preempted(rank.rank):
            told = ""
        self._own_errors.note(rank.rank, rank.epoch, told)
        if not self._may_grow():
            return
        if self._own_errors.have_all(self._last):
            why = "all members have ended by their own errors"
        elif self._own_errors.has_repeated(rank.rank, told):
            why = f"member {rank.rank} has repeated the error of an earlier one"
        else:
            return
        self._slots.close()
        self._output.say(f"{why}; no others are started")

    def _restart(self, slot: Slot, rank: Rank) -> None:
        slots, now = self._slots, time.monotonic()
        num_before = slots.num_restarts
        if not slots.restart(slot, rank.epoch, now):
            if slots.max_restarts:
                self._output.say(
                    f"no restarts are left (--max-restarts "
                    f"{slots.max_restarts})"
                )
        elif slots.num_restarts > num_before:
            self._output.say(
                f"restart {slots.num_restarts} of {slots.max_restarts} on host "
                f"{slot.host} in {slots.free_at(slot) - now:g} s"
            )

    def _note_finish(self) -> None:
        """Takes no newcomers any more, for a member has finished."""
        if self._is_done:
            return
        self._is_done = True
        self._slots.close()
        self._server.takes_newcomers = False
        self._server.min_size = 1
        for rank in self._ranks:
            if not rank.epoch and not rank.has_ended:
                rank.sent = signal.SIGKILL
                self._kill(rank.rank)

    # ---- The end ----

    def _blame(self) -> Blame:
        """Returns who has ended the job; earlier failures did not."""
        last = self._last or range(len(self._ranks))
        if self._has_finished():
            # Losing a member is no failure, but an error that it ends with is.
            last = [
                number
                for number in last
                if self._ranks[number].signal is None
                and not self._ranks[number].is_lost
            ]
        return self._ends.blame(last)

    def _has_finished(self) -> bool:
        return any(
            rank.exit_status == 0 and rank.rank not in self._leaving
            for rank in self._ranks
        )

    def _exit_status(self) -> int:
        found = self._blame()
        if found.rank is not None:
            return self._ends.exit_status(found)
        leaves = self._leaving and not self._has_finished()
        if leaves and not self._is_over:
            return self._config.requeue_exit_code
        return int(self._is_over)

    def _finish(self) -> Outcome:
        status, text = self._exit_status(), ""
        found = self._blame()
        if status == self._config.requeue_exit_code:
            text = "all members have left; run it again to go on"
            self._output.say(text)
        elif status:
            if found.rank is None:
                found = self._ends.blame()
            if found.rank is not None:
                text = self._describe(found)
                self._output.say(text)
            self._show_table(found)
        else:
            has_members = any(rank.epoch for rank in self._ranks)
            self._note_strangers(has_members=has_members)
        return self._ends.outcome(found, status, text)
