"""The policy of one job: who failed first, when it ends, what is said of it.

The hosts do the work; see `hosts`. The job runs the rendezvous server.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import socket
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from hvd_keras._job.bootstrap import secret, tls
from hvd_keras._job.bootstrap.listener import Listener
from hvd_keras._job.bootstrap.server import ExchangeServer
from hvd_keras._job.bootstrap.stream import Stream
from hvd_keras._job.bootstrap.wire import Identity, Report, ReportKind, Role
from hvd_keras._observe.blame import Blame
from hvd_keras._observe.evidence import Part
from hvd_keras.config import Config
from hvd_keras.run import environment, report
from hvd_keras.run.file_limit import raise_file_limit
from hvd_keras.run.gathering import Gathering
from hvd_keras.run.grace import Grace
from hvd_keras.run.hosts import Host, Launch, LocalHost, RemoteHost
from hvd_keras.run.inquiry import Inquiry
from hvd_keras.run.job_output import JobOutput
from hvd_keras.run.link import Loss
from hvd_keras.run.look import Folder
from hvd_keras.run.loop import Loop
from hvd_keras.run.outcome import Ends, Outcome
from hvd_keras.run.placement import Plan
from hvd_keras.run.planning import check_shown_ranks
from hvd_keras.run.rank import Rank
from hvd_keras.run.results import Results
from hvd_keras.run.signals import SIGNALS, TO_GROUPS, TO_RANKS, Wakeup
from hvd_keras.run.spec import JobSpec
from hvd_keras.run.standard_input import StandardInput
from hvd_keras.run.status import Status

# Time for output that comes after the last rank has ended.
_DRAIN_SECONDS = 0.5
# Time for the other hosts to free everything.
_FAREWELL_SECONDS = 5.0


class Job:
    """One job, from start to end. Single-threaded."""

    def __init__(
        self, spec: JobSpec, environ: dict[str, str], plan: Plan
    ) -> None:
        self._spec = spec
        self._environ = environ
        self._plan = plan
        self._config = Config.from_environ(environ)
        self._loop = Loop()
        self._output = JobOutput(spec.output)
        seconds = spec.output.status_seconds
        self._status = None if seconds is None else Status(seconds)
        self._results = Results(self._loop, spec.results_folder or "")
        self._hosts: list[Host] = []
        self._folder = Folder(environ)
        self._inquiry = Inquiry(self._folder, self._hosts, self._output.say)
        self._local: LocalHost | None = None
        self._gathering: Gathering | None = None  # None: there is one host
        self._ranks: list[Rank] = []
        self._ends = Ends(self._ranks)
        self._first_failed: int | None = None  # the first that we know of
        self._grace = Grace(
            spec.grace, self._hosts, self._ranks, self._output.say
        )
        self._num_interrupts = 0
        self._was_interrupted = False
        self._signals: list[int] = []  # which other hosts do not know yet
        self._is_ending = False
        self._started_at = time.monotonic()

    def run(self) -> Outcome:
        """Starts the ranks and returns when all have ended."""
        stdin = StandardInput(self._spec.command, self._spec.program)
        self._make_hosts()
        self._serve()
        self._handle_signals()
        exit_status = 1
        try:
            if self._gathering is not None:
                self._gathering.wait()
            self._start(stdin)
            while self._goes_on():
                self._step()
            self._drain()
            exit_status = self._exit_status()
            self._gather_records()
        finally:
            self._end(exit_status)
        try:
            return self._finish()
        finally:
            if exit_status == 0 or not self._inquiry.verdict:
                self._folder.remove()

    def _goes_on(self) -> bool:
        return not all(rank.has_ended for rank in self._ranks)

    # ---- Start ----

    def _make_hosts(self) -> None:
        for planned in self._plan.hosts:
            if planned.is_local:
                name = self._config.hostname or planned.name
                self._local = LocalHost(self._loop, self, name, self._folder)
                self._hosts.append(self._local)
            else:
                self._hosts.append(
                    RemoteHost(
                        self._loop,
                        self,
                        planned.name,
                        self._config,
                        has_own_command=self._plan.way == "hosts",
                    )
                )

    def _serve(self) -> None:
        plan = self._plan
        size = sum(host.slots or 0 for host in plan.hosts)
        raise_file_limit(size)
        listener = Listener(backlog=size + 64)
        for host in self._hosts:
            host.rendezvous = f"unix:{listener.address}"
        self._secret = secrets.token_bytes(32)
        if plan.way == "hosts":
            self._secret = secret.require(self._config)
        self._server = self._make_server(listener.socket, size)
        # It is stepped after each step of the loop.
        self._loop.watch(self._server, lambda: None)
        if not plan.is_of_one_host:
            self._gathering = Gathering(
                self._loop,
                self._server,
                plan,
                self._hosts,
                self._spec,
                self._config,
                self._secret,
            )

    def _make_server(
        self, listener: socket.socket, size: int
    ) -> ExchangeServer:
        return ExchangeServer(
            listener,
            self._secret,
            size,
            self._take_report,
            tls=tls.context(self._config, is_server=True),
            on_agent=self._take_agent,
        )

    def _take_agent(
        self, identity: Identity, stream: Stream, unsent: bytes
    ) -> None:
        if identity.role == Role.AGENT:
            self._gathered().take_agent(identity, stream, unsent)
        elif identity.role == Role.GIVER and self._spec.results_folder:
            self._results.take(identity, stream, unsent)
        else:
            stream.close()  # nobody waits for it

    def _gathered(self) -> Gathering:
        assert self._gathering is not None
        return self._gathering

    def _handle_signals(self) -> None:
        Wakeup(self._loop)
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._forward)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if self._gathering is not None and not self._gathering.is_done:
            self._gathering.interrupt(number)
            return
        if number in TO_GROUPS:
            self._was_interrupted = True
            if self._first_failed is None:
                self._ends.interruption = self._ends.interruption or number
            elif self._ends.interruption is None:
                self._ends.note_signal()
            self._grace.begin()
        if number == signal.SIGINT:
            self._num_interrupts += 1
        if self._num_interrupts > 1:
            number = signal.SIGKILL
        # At once, for ranks may be starting. Other hosts get it from the loop:
        # one must not send in a handler.
        self._signals.append(number)
        if self._local is not None:
            self._signal(self._local, number)

    @staticmethod
    def _signal(host: Host, number: int) -> None:
        host.signal(number, None, to_groups=number not in TO_RANKS)

    def _start(self, stdin: StandardInput) -> None:
        plan = self._plan
        slots = [host.slots or 0 for host in plan.hosts]
        if self._gathering is not None:
            slots = self._gathering.slots()
        places = plan.places(slots)
        size = places[0].size
        check_shown_ranks(self._spec, size)
        self._server.set_size(size)
        for host, place in zip(self._hosts, places, strict=True):
            host.place = place
            name = "" if plan.is_of_one_host else host.name
            for rank in place.ranks():
                self._ranks.append(Rank(rank, name))
                self._server.rank_started(rank)
        self._say_start()
        launch = self._launch()
        # The other hosts first, for they need longer.
        for host in sorted(self._hosts, key=lambda h: h is self._local):
            host.start(launch, stdin)
        stdin.close()

    def _launch(self) -> Launch:
        return Launch(
            self._spec.command,
            self._environ,
            self._secret,
            self._spec.is_horovod,
            self._spec.exported(),
            keeps_surroundings=self._plan.way == "shell",
        )

    def _say_start(self) -> None:
        if self._gathering is None:
            self._say_start_here()
        else:
            self._output.say(self._gathering.describe())
        self._output.warn_if_closed()

    def _say_start_here(self) -> None:
        size = len(self._ranks)
        defaults = environment.defaults(self._environ, size)
        ranks = "1 rank" if size == 1 else f"{size} ranks"
        chosen = ", ".join(f"{n}={v}" for n, v in defaults.items())
        what = chosen or "threads and memory as set in the environment"
        cores = environment.num_cores()
        more = " (more ranks than cores: they take turns)"
        self._output.say(
            f"{ranks} on {cores} core{'s' * (cores > 1)}"
            f"{more * (size > cores)}, each with {what}"
        )
        gpus = environment.describe_gpus(
            self._environ, size, is_horovod=self._spec.is_horovod
        )
        if gpus:
            self._output.say(gpus)

    # ---- What the hosts say ----

    def rank_started(self, rank: int, pid: int) -> None:
        self._ranks[rank].pid = pid
        self._output.open(rank)
        if self._spec.output.is_verbose:
            host = self._ranks[rank].host
            where = f" on host {host}" if host else ""
            self._output.say(f"rank {rank} started{where}, pid {pid}")

    def rank_wrote(self, rank: int, stream: int, data: bytes) -> None:
        if not self._is_ending:
            self._output.take(rank, stream, data)

    def rank_exited(
        self, rank: int, exit_status: int, killed_by: int | None
    ) -> None:
        if self._is_ending:
            return
        found = self._ranks[rank]
        found.exit_status, found.signal = exit_status, killed_by
        self._on_exit(found)

    def host_is_ready(self, host: RemoteHost) -> None:
        pass  # the gathering asks

    def host_was_signalled(self, host: RemoteHost, number: int) -> None:
        if number in SIGNALS:
            self._forward(number, None)

    def host_failed(self, host: Host, text: str, exit_status: int) -> None:
        self._output.say(f"host {host.name}: {text}")
        for rank in host.place.ranks():
            if not self._ranks[rank].pid and not self._ranks[rank].has_ended:
                self._ends.note(Report(ReportKind.FAILS, rank, text))
                self.rank_exited(rank, exit_status, None)

    def host_is_lost(self, host: RemoteHost, loss: Loss) -> None:
        if self._is_ending:
            return
        if not self._ranks:
            self._gathered().note_loss(host, loss.text)
            return
        ranks = [self._ranks[rank] for rank in host.place.ranks()]
        left = [rank for rank in ranks if not rank.has_ended]
        if not left:
            return
        numbers = ", ".join(str(rank.rank) for rank in left)
        self._output.say(
            f"host {host.name} was lost: {loss.text} (agent's pid {host.pid}); "
            f"it had rank{'s' * (len(left) > 1)} {numbers}"
        )
        for rank in left:
            rank.is_lost = True
            rank.exit_status = 1
            self._output.end(rank.rank)
            self._on_exit(rank)

    def host_has_checked(
        self, host: RemoteHost, answer: Mapping[str, Any]
    ) -> None:
        pass  # nobody has asked

    def host_sent_record(self, rank: int, part: Part, data: bytes) -> None:
        self._inquiry.take(rank, part, data)

    # ---- The loop ----

    def _step(self) -> None:
        self._loop.step(self._time_left())
        signals, self._signals = self._signals, []
        if signal.SIGUSR2 in signals:
            self._begin_survey()
        for host in self._hosts:
            for number in signals:
                if host is not self._local:
                    self._signal(host, number)
            host.step()
        # After the exits: ranks that fail because of an exit say so only now.
        self._server.step()
        if self._inquiry.take_answer():
            self._say_verdict()
        self._grace.step()
        if self._status is not None:
            table = self._status.table_if_due(self._shown_ranks())
            if table:
                self._output.say(table)

    def _begin_survey(self) -> None:
        self._inquiry.begin(is_of_failure=False)

    def _shown_ranks(self) -> list[Rank]:
        return self._ranks

    def _time_left(self) -> float | None:
        deadlines = [self._server.next_deadline()]
        deadlines += [host.next_deadline() for host in self._hosts]
        deadlines.append(self._inquiry.next_deadline())
        deadlines.append(self._grace.next_deadline())
        if self._status is not None:
            deadlines.append(self._status.next_deadline())
        known = [d for d in deadlines if d is not None]
        if not known:
            return None
        return max(0.0, min(known) - time.monotonic())

    def _take_report(self, told: Report) -> None:
        if told.kind != ReportKind.STATUS:
            self._on_report(told)
        elif self._status is not None:
            self._status.note(told.rank, told.text)

    def _on_report(self, told: Report) -> None:
        # A rank reports that it leaves before its peers can notice.
        self._ends.note_leaving(told.rank)
        if told.kind in (ReportKind.FAILS, ReportKind.PREEMPTED):
            self._ends.note(told)
            self._note_failure(told.rank, has_ended=False)

    def _on_exit(self, rank: Rank) -> None:
        self._ends.note_leaving(rank.rank)
        self._server.rank_exited(rank.rank, rank.describe_exit())
        if self._spec.output.is_verbose:
            self._output.say(f"rank {rank.rank} {rank.describe_exit()}")
        if rank.exit_status != 0:
            self._note_failure(rank.rank, has_ended=True)

    def _note_failure(self, rank: int, has_ended: bool) -> None:
        if self._first_failed is None:
            self._first_failed = rank
            if not self._ends.was_preempted(rank):
                self._inquiry.begin(is_of_failure=True)
        if rank == self._first_failed:
            # It may end slowly, saving its work. The grace time of the others
            # begins when it has ended, or after as long a time for it.
            self._grace.begin(1 if has_ended else 2)

    # ---- The end ----

    def _drain(self) -> None:
        # A rank's child may hold the output open: wait, then kill it and read
        # the rest.
        for kill in (False, True):
            if kill:
                for host in self._hosts:
                    host.kill()
            deadline = time.monotonic() + _DRAIN_SECONDS
            while not self._output.has_ended() and time.monotonic() < deadline:
                self._server.step()
                left = max(0.0, deadline - time.monotonic())
                self._loop.step(min(left, 0.1))

    def _gather_records(self) -> None:
        """Waits for what ranks of other hosts have left at their end."""
        if self._ends.blame().rank is None or self._plan.is_of_one_host:
            return
        self._inquiry.look_again()
        while self._inquiry.is_looking():
            self._loop.step(0.02)
            for host in self._hosts:
                host.step()

    def _say_verdict(self) -> None:
        self._inquiry.tell(self._ranks, self._ends)

    def _end(self, exit_status: int) -> None:
        self._is_ending = True
        for host in self._hosts:
            host.kill()
        self._output.close()
        for host in self._hosts:
            host.end(exit_status)
        if self._gathering is not None:
            self._gathering.close(_FAREWELL_SECONDS)
        self._server.close()

    def _exit_status(self) -> int:
        return self._ends.exit_status(self._ends.blame())

    def _finish(self) -> Outcome:
        found, status = self._ends.blame(), self._exit_status()
        if found.rank is None:
            self._note_strangers(has_members=self._server.last_epoch() > 0)
            return Outcome(status)
        if self._ends.was_preempted(found.rank):
            saved = self._ends.error(found.rank)
            text = f"{saved}; run it again to go on"
            self._output.say(text)
            return Outcome(status, text)
        text = self._describe(found)
        self._output.say(text)
        self._say_verdict()
        if self._inquiry.verdict:
            folder = self._folder.path
            self._output.say(f"records are kept; see `hvd-doctor {folder}`")
        self._show_table(found)
        return self._ends.outcome(found, status, text)

    def _note_strangers(self, *, has_members: bool) -> None:
        """Says so if a job has ended well in which no rank has joined."""
        if len(self._ranks) > 1 and not has_members:
            self._output.say(report.nobody_joined(len(self._ranks)))

    def _describe(self, found: Blame) -> str:
        return self._ends.describe(found, time.monotonic() - self._started_at)

    def _show_table(self, found: Blame) -> None:
        if found.is_interruption:
            return
        rows = []
        for rank in self._ranks:
            told = self._ends.error(rank.rank)
            stderr = self._output.errors_of(rank.rank)
            line = report.last_error_line(stderr, told)
            rows.append((rank, line if rank.exit_status else ""))
        width = shutil.get_terminal_size((120, 24)).columns
        self._output.show(report.table(rows, width))
        if page := report.where_to_read([line for _, line in rows]):
            self._output.say(page)
