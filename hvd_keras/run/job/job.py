"""One job: its hosts, its rendezvous server, its output, and the loop.

A policy decides what becomes of it; see `policy`.
"""

from __future__ import annotations

import dataclasses
import secrets
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from hvd_keras._records.blame import Blame
from hvd_keras._records.evidence import Part
from hvd_keras._rendezvous import secret, tls
from hvd_keras._rendezvous.listener import Listener
from hvd_keras._rendezvous.protocol import Identity, Report, ReportKind, Role
from hvd_keras._rendezvous.server import Server
from hvd_keras._rendezvous.stream import Stream
from hvd_keras.config import Config
from hvd_keras.run.hosts.discovery import Discovery
from hvd_keras.run.hosts.host import Host, Launch, RemoteHost
from hvd_keras.run.hosts.link import Loss
from hvd_keras.run.hosts.placement import Plan
from hvd_keras.run.hosts.provider import Provided
from hvd_keras.run.hosts.rank_records import Folder
from hvd_keras.run.job import policy, results
from hvd_keras.run.job.elastic import Elastic
from hvd_keras.run.job.fixed import Fixed
from hvd_keras.run.job.gathering import Gathering
from hvd_keras.run.job.inquiry import Inquiry
from hvd_keras.run.job.outcome import Ends, Outcome
from hvd_keras.run.job.remarks_of_ranks import RemarksOfRanks
from hvd_keras.run.ranks import environment
from hvd_keras.run.ranks.rank import Rank
from hvd_keras.run.ranks.standard_input import StandardInput
from hvd_keras.run.screen import report
from hvd_keras.run.screen.job_output import JobOutput
from hvd_keras.run.screen.status import Status
from hvd_keras.run.spec import JobSpec
from hvd_keras.run.system.file_limit import raise_file_limit
from hvd_keras.run.system.loop import Loop
from hvd_keras.run.system.signals import SIGNALS, TO_GROUPS, TO_RANKS, Wakeup

# Time for output that comes after the last rank has ended.
_DRAIN_SECONDS = 0.5
# Time for the other hosts to free everything.
# A script has imported its packages and read its data by then, mostly.
_JOIN_SECONDS = 60.0
_FAREWELL_SECONDS = 5.0
_NO_START_STATUS = 2  # of a member that could not be started


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
        self._policy: policy.Policy
        if spec.elastic is None:
            self._policy = Fixed(spec, plan)
        else:
            self._policy = Elastic(spec, plan, self._config)
        self._ranks = self._policy.ranks
        self._folder = Folder(environ)
        self._gathering = Gathering(
            *(self._loop, self, plan, spec, self._config, self._folder),
            self._output.say,
        )
        self._hosts = self._gathering.hosts
        self._inquiry = Inquiry(self._folder, self._hosts, self._output.say)
        self._remarks = RemarksOfRanks()
        self._discovery: Discovery | Provided | None = None
        self._num_interrupts = 0
        self._signals: list[int] = []  # which other hosts do not know yet
        self._is_ending = False
        self._started_at = time.monotonic()
        self._ask_at: float | None = None  # when to look who has joined

    def run(self) -> Outcome:
        """Starts the ranks and returns when all have ended."""
        self._stdin = StandardInput(self._spec.command, self._spec.program)
        self._serve()
        self._handle_signals()
        ending = policy.Ending(Blame(), 1)
        try:
            hint = report.misplaced(self._spec.command)
            if hint and not self._environ.get("HVD_DISTRIBUTE"):
                self._output.say(hint)
            self._gathering.wait()
            self._start()
            while self._policy.goes_on():
                self._step()
            self._drain()
            for rank in self._ranks:
                errors = self._output.errors_of(rank.rank)
                words = report.last_error_line(errors)
                self._policy.ends.note_last_words(
                    rank.rank, words, report.last_traceback(errors)
                )
            seconds = time.monotonic() - self._started_at
            ending = self._judged(self._policy.ending(seconds))
            self._gather_records()
        finally:
            self._end(ending.exit_status)
        try:
            return self._finish(ending)
        finally:
            has_told = self._inquiry.verdict and self._folder.has_records()
            if ending.exit_status == 0 or not has_told:
                self._folder.remove()

    # ---- Start ----

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
        self._server = Server(
            listener.socket,
            self._secret,
            self._policy.generations,
            self._take_report,
            tls=tls.context(self._config, is_server=True),
            on_agent=self._take_agent,
        )
        # It is stepped after each step of the loop.
        self._loop.watch(self._server, lambda: None)
        self._gathering.serve(self._server, self._secret)

    def _take_agent(
        self, identity: Identity, stream: Stream, unsent: bytes
    ) -> None:
        if identity.role == Role.AGENT:
            self._gathering.take_agent(identity, stream, unsent)
        elif identity.role == Role.GIVER and self._spec.results_folder:
            folder = self._spec.results_folder
            results.take(self._loop, folder, identity, stream, unsent)
        else:
            stream.close()  # nobody waits for it

    def _handle_signals(self) -> None:
        Wakeup(self._loop)
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._forward)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if not self._gathering.is_done:
            self._gathering.interrupt(number)
            return
        if number in TO_GROUPS:
            self._policy.interrupted(number, time.monotonic())
        if number == signal.SIGINT:
            self._num_interrupts += 1
        if self._num_interrupts > 1:
            number = signal.SIGKILL
        # At once, for ranks may be starting. Other hosts get it from the loop:
        # one must not send in a handler.
        self._signals.append(number)
        if self._gathering.local is not None:
            self._signal(self._gathering.local, number)

    @staticmethod
    def _signal(host: Host, number: int) -> None:
        host.signal(number, None, to_groups=number not in TO_RANKS)

    def _start(self) -> None:
        self._policy.begin(self._gathering.names(), time.monotonic())
        self._ask_at = time.monotonic() + _JOIN_SECONDS
        for action in self._policy.actions:
            if isinstance(action, policy.Start):
                self._gathering.placed(action)
        self._say_start()
        self._act()
        elastic = self._spec.elastic
        self._stdin.close(keeps_program=elastic is not None)
        if elastic is not None and elastic.host_discovery_script is not None:
            self._discovery = Discovery(
                self._loop,
                elastic.host_discovery_script,
                elastic.slots_per_host,
                self._take_names,
                lambda text: self._output.say(
                    f"{text} The hosts stay as they are."
                ),
            )
        elif self._gathering.provided is not None:
            self._discovery = self._gathering.provided
            self._discovery.watch(self._take_names)

    def _say_start(self) -> None:
        lines = [self._gathering.describe()]
        if self._plan.is_of_one_host:
            size, is_horovod = len(self._ranks), self._spec.is_horovod
            lines = environment.described(
                self._environ,
                size,
                is_horovod=is_horovod,
                is_verbose=self._spec.output.is_verbose,
            )
        for line in lines:
            self._output.say(line)
        self._output.warn_if_closed()

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
        self._policy.exited(rank, time.monotonic())
        self._act()

    def host_is_ready(self, host: RemoteHost) -> None:
        self._gathering.take(host)
        self._policy.host_came(host.name, host.slots())
        self._act()

    def host_was_signalled(self, host: RemoteHost, number: int) -> None:
        if number not in SIGNALS or not self._gathering.knows(host):
            return
        now = time.monotonic()
        if self._policy.host_was_signalled(host.name, number, now):
            self._forward(number, None)
        self._act()

    def host_failed(self, host: Host, text: str, exit_status: int) -> None:
        self._output.say(f"host {host.name}: {text}")
        for rank in host.place.ranks():
            if not self._ranks[rank].pid and not self._ranks[rank].has_ended:
                told = Report(ReportKind.FAILS, rank, text)
                self._policy.ends.note(told)
                self.rank_exited(rank, exit_status, None)

    def host_is_lost(self, host: RemoteHost, loss: Loss) -> None:
        if self._is_ending:
            return
        if not self._ranks:
            self._gathering.note_loss(host, loss.text)
            return
        if not self._gathering.knows(host):
            return  # it was told to end
        now, may_run = time.monotonic(), loss.may_run
        self._policy.host_was_lost(host.name, now, may_run=may_run)
        self._act()
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
            self._policy.exited(rank.rank, now)
        self._act()

    def host_has_checked(
        self, host: RemoteHost, answer: Mapping[str, Any]
    ) -> None:
        pass  # nobody has asked

    def host_sent_record(self, rank: int, part: Part, data: bytes) -> None:
        self._inquiry.take(rank, part, data)

    def _take_names(self, found: Mapping[str, int]) -> None:
        """Takes the hosts that a program, or a provider, has named."""
        named = self._gathering.named(found)
        self._policy.hosts_were_named(named, time.monotonic())
        self._act()

    # ---- What the policy asks for ----

    def _act(self) -> None:
        while self._policy.actions:
            self._do(self._policy.actions.popleft())
        self._server.flush()

    def _do(self, action: policy.Action) -> None:
        match action:
            case policy.Say(text):
                self._output.say(text)
            case policy.Start():
                self._start_ranks(action)
            case policy.Signal(number, ranks):
                self._gathering.signal(number, ranks)
            case policy.Survey():
                self._inquiry.begin(is_of_failure=True)
            case policy.StartHost(name, num_slots):
                self._gathering.start(name, num_slots)
            case policy.EndHost(name):
                self._gathering.end(name)

    def _start_ranks(self, action: policy.Start) -> None:
        host = self._gathering.placed(action)
        launch = Launch(
            self._spec.command,
            self._environ,
            self._secret,
            self._spec.is_horovod,
            self._spec.exported(),
            keeps_surroundings=self._plan.way == "provider",
        )
        try:
            host.start(launch, self._stdin, action.ranks)
        except OSError as error:
            if self._spec.elastic is None:
                raise
            self.host_failed(host, str(error), _NO_START_STATUS)

    # ---- The loop ----

    def _step(self) -> None:
        self._loop.step(self._time_left())
        signals, self._signals = self._signals, []
        if signal.SIGUSR2 in signals:
            self._inquiry.begin(is_of_failure=False, ranks=self._policy.members)
        for host in self._hosts:
            for number in signals:
                if host is not self._gathering.local:
                    self._signal(host, number)
            host.step()
        # After the exits: ranks that fail because of an exit say so only now.
        self._server.step()
        self._act()
        if self._inquiry.take_answer():
            self._inquiry.tell(*self._present())
        self._step_hosts()
        if self._ask_at is not None and time.monotonic() >= self._ask_at:
            self._ask_at = None
            if self._is_unjoined():
                text = report.not_yet_joined(len(self._ranks), _JOIN_SECONDS)
                self._output.say(text)
        self._policy.step(time.monotonic())
        self._act()
        if self._status is not None:
            is_fixed = self._policy.members is None
            shown = [r for r in self._ranks if is_fixed or not r.has_ended]
            table = self._status.table_if_due(shown)
            if table:
                self._output.say(table)

    def _step_hosts(self) -> None:
        """Looks for hosts that come, or do not."""
        if self._discovery is not None:
            if self._policy.takes_hosts():
                self._discovery.step()
            else:
                self._discovery.close()
                self._discovery = None
        for host, why in self._gathering.failures():
            self._policy.host_did_not_come(host, why, time.monotonic())

    def _time_left(self) -> float | None:
        now = time.monotonic()
        deadlines = [self._server.next_deadline()]
        deadlines += [host.next_deadline() for host in self._hosts]
        deadlines.append(self._inquiry.next_deadline())
        deadlines += [self._policy.next_deadline(now), self._ask_at]
        for other in (self._status, self._discovery):
            if other is not None:
                deadlines.append(other.next_deadline())
        known = [d for d in deadlines if d is not None]
        return max(0.0, min(known) - now) if known else None

    def _present(self) -> tuple[Sequence[Rank], Ends]:
        """Returns the ranks that a verdict is about, by what they are now."""
        members = self._policy.members
        if members is None:
            return self._ranks, self._policy.ends
        present = [
            dataclasses.replace(self._ranks[number], rank=rank)
            for number, rank in members.items()
        ]
        return present, Ends(present)

    def _take_report(self, told: Report) -> None:
        if told.kind == ReportKind.REMARKS:
            self._remarks.note(told)
        elif told.kind != ReportKind.STATUS:
            self._policy.reported(told, time.monotonic())
            self._act()
        elif self._status is not None:
            self._status.note(told.rank, told.text)

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
        if self._policy.ends.blame().rank is None or self._plan.is_of_one_host:
            return
        self._inquiry.look_again()
        while self._inquiry.is_looking():
            self._loop.step(0.02)
            for host in self._hosts:
                host.step()

    def _is_unjoined(self) -> bool:
        """Whether no rank has called `init()`."""
        return len(self._ranks) > 1 and not self._policy.generations.last()

    def _judged(self, ending: policy.Ending) -> policy.Ending:
        """Returns the ending, or a failure where a warning is an error."""
        if ending.exit_status or not self._config.strict:
            return ending
        if not self._remarks and not self._is_unjoined():
            return ending
        return policy.Ending(ending.blame, 1, report.WARNED)

    def _end(self, exit_status: int) -> None:
        self._is_ending = True
        for host in self._hosts:
            host.kill()
        self._output.close()
        for host in self._hosts:
            host.end(exit_status)
        self._gathering.close(_FAREWELL_SECONDS)
        self._server.close()

    def _finish(self, ending: policy.Ending) -> Outcome:
        if ending.text:
            self._output.say(ending.text)
        if ending.has_verdict:
            self._inquiry.tell(*self._present())
            if self._inquiry.verdict and self._folder.has_records():
                folder = self._folder.path
                text = f"records are kept; see `hvd-doctor {folder}`"
                self._output.say(text)
        if ending.has_table:
            self._show_table(ending.blame)
        if self._is_unjoined() and (
            ending.exit_status == 0 or ending.text == report.WARNED
        ):
            command = self._spec.command
            self._output.say(report.nobody_joined(len(self._ranks), command))
        # Of a job that failed, what explains why a rank ended well.
        well = [one.rank for one in self._ranks if one.exit_status == 0]
        if well or not ending.has_table:
            for line in self._remarks.lines(well if ending.has_table else None):
                self._output.say(line)
        return self._policy.ends.outcome(
            ending.blame, ending.exit_status, ending.text
        )

    def _show_table(self, found: Blame) -> None:
        if found.is_interruption:
            return
        is_shared = found.shared_error or found.shared_status is not None
        if found.rank is not None and not is_shared:
            self._output.show_hidden(found.rank)
        rows = []
        for rank in self._ranks:
            line = self._policy.ends.last_words(rank.rank)
            rows.append((rank, line if rank.exit_status else ""))
        width = shutil.get_terminal_size((120, 24)).columns
        self._output.show(report.table(rows, width))
        lines = [line for _, line in rows]
        if found.rank is not None and not found.shared_error:
            # What the others raise follows from that.
            own = [line for rank, line in rows if rank.rank == found.rank]
            lines = own if any(own) else lines
        if page := report.where_to_read(lines):
            self._output.say(page)
