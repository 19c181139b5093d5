"""The policy of one job: who failed first, when it ends, what is said of it.

The hosts do the work; see `hosts`. The job runs the rendezvous server.
"""

from __future__ import annotations

import secrets
import shutil
import signal
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from hvd_keras._job.bootstrap import secret, tls
from hvd_keras._job.bootstrap.listener import Listener
from hvd_keras._job.bootstrap.server import ExchangeServer
from hvd_keras._job.bootstrap.wire import PREEMPTED
from hvd_keras.config import Config
from hvd_keras.run import environment, report
from hvd_keras.run.arguments import Options, check_shown_ranks
from hvd_keras.run.gathering import Gathering
from hvd_keras.run.host_ranks import raise_file_limit
from hvd_keras.run.hosts import Host, Launch, LocalHost, RemoteHost
from hvd_keras.run.job_output import JobOutput
from hvd_keras.run.loop import Loop
from hvd_keras.run.placement import Plan
from hvd_keras.run.rank import Rank
from hvd_keras.run.signals import SIGNALS, TO_GROUPS, TO_RANKS, Wakeup
from hvd_keras.run.standard_input import StandardInput

# From SIGTERM to SIGKILL, after the grace time.
_TERMINATION_SECONDS = 3.0
# Time for output that comes after the last rank has ended.
_DRAIN_SECONDS = 0.5
# Time for the other hosts to free everything.
_FAREWELL_SECONDS = 5.0


class Job:
    """One job, from start to end. Single-threaded."""

    def __init__(
        self, options: Options, environ: dict[str, str], plan: Plan
    ) -> None:
        self._options = options
        self._environ = environ
        self._plan = plan
        self._config = Config.from_environ(environ)
        self._loop = Loop()
        self._output = JobOutput(options)
        self._hosts: list[Host] = []
        self._local: LocalHost | None = None
        self._gathering: Gathering | None = None  # None: there is one host
        self._ranks: list[Rank] = []
        self._reasons: dict[int, str] = {}  # told by failing ranks
        self._leavers: list[int] = []  # ranks that began to end, in order
        self._first_failed: int | None = None  # the first that we know of
        self._next_kill: tuple[float, int] | None = None  # when, which
        self._num_interrupts = 0
        self._signals: list[int] = []  # which other hosts do not know yet
        self._is_ending = False
        self._started_at = time.monotonic()

    def run(self) -> int:
        """Starts the ranks and returns when all have ended.

        Returns:
            The exit status for the launcher.
        """
        stdin = StandardInput(self._options.command)
        self._make_hosts()
        self._serve()
        self._handle_signals()
        exit_status = 1
        try:
            if self._gathering is not None:
                self._gathering.wait()
            self._start(stdin)
            while not all(rank.has_ended for rank in self._ranks):
                self._step()
            self._drain()
            exit_status = self._exit_status()
        finally:
            self._end(exit_status)
        return self._finish()

    # ---- Start ----

    def _make_hosts(self) -> None:
        for planned in self._plan.hosts:
            if planned.is_local:
                name = self._config.hostname or planned.name
                self._local = LocalHost(self._loop, self, name)
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
        self._server = ExchangeServer(
            listener.socket,
            self._secret,
            size,
            self._on_report,
            tls=tls.context(self._config, is_server=True),
            on_agent=lambda *agent: self._gathered().take_agent(*agent),
        )
        # It is stepped after each step of the loop.
        self._loop.watch(self._server, lambda: None)
        if not plan.is_of_one_host:
            self._gathering = Gathering(
                self._loop,
                self._server,
                plan,
                self._hosts,
                self._options,
                self._config,
                self._secret,
            )

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
            self._begin_grace()
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
        check_shown_ranks(self._options, size)
        self._server.set_size(size)
        for host, place in zip(self._hosts, places, strict=True):
            host.place = place
            name = "" if plan.is_of_one_host else host.name
            for rank in place.ranks():
                self._ranks.append(Rank(rank, name))
                self._server.rank_started(rank)
        self._say_start()
        launch = Launch(
            self._options.command,
            self._environ,
            self._secret,
            self._options.horovod_compat,
            self._options.exported(),
        )
        # The other hosts first, for they need longer.
        for host in sorted(self._hosts, key=lambda h: h is self._local):
            host.start(launch, stdin)
        stdin.close()

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
        self._output.say(
            f"{ranks} on {cores} core{'s' * (cores > 1)}, each with {what}"
        )

    # ---- What the hosts say ----

    def rank_started(self, rank: int, pid: int) -> None:
        self._ranks[rank].pid = pid
        self._output.open(rank)
        if self._options.verbose:
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

    def host_was_signalled(self, number: int) -> None:
        if number in SIGNALS:
            self._forward(number, None)

    def host_failed(
        self, host: RemoteHost, text: str, exit_status: int
    ) -> None:
        self._output.say(f"host {host.name}: {text}")
        for rank in host.place.ranks():
            if not self._ranks[rank].pid:
                self._reasons[rank] = text
                self.rank_exited(rank, exit_status, None)

    def host_is_lost(self, host: RemoteHost, reason: str) -> None:
        if self._is_ending:
            return
        if not self._ranks:
            self._gathered().note_loss(host, reason)
            return
        ranks = [self._ranks[rank] for rank in host.place.ranks()]
        left = [rank for rank in ranks if not rank.has_ended]
        if not left:
            return
        numbers = ", ".join(str(rank.rank) for rank in left)
        self._output.say(
            f"host {host.name} was lost: {reason} (agent's pid {host.pid}); "
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

    # ---- The loop ----

    def _step(self) -> None:
        self._loop.step(self._time_left())
        signals, self._signals = self._signals, []
        for host in self._hosts:
            for number in signals:
                if host is not self._local:
                    self._signal(host, number)
            host.step()
        # After the exits: ranks that fail because of an exit say so only now.
        self._server.step()
        self._kill_if_due()

    def _time_left(self) -> float | None:
        deadlines = [self._server.next_deadline()]
        deadlines += [host.next_deadline() for host in self._hosts]
        if self._next_kill is not None:
            deadlines.append(self._next_kill[0])
        known = [d for d in deadlines if d is not None]
        if not known:
            return None
        return max(0.0, min(known) - time.monotonic())

    def _on_report(self, rank: int, reason: str) -> None:
        # A rank reports that it leaves before its peers can notice.
        self._note_leaving(rank)
        if reason:
            self._reasons.setdefault(rank, reason)
            self._note_failure(rank, has_ended=False)

    def _on_exit(self, rank: Rank) -> None:
        self._note_leaving(rank.rank)
        self._server.rank_exited(rank.rank, rank.describe_exit())
        if self._options.verbose:
            self._output.say(f"rank {rank.rank} {rank.describe_exit()}")
        if rank.exit_status != 0:
            self._note_failure(rank.rank, has_ended=True)

    def _note_leaving(self, rank: int) -> None:
        if rank < len(self._ranks) and rank not in self._leavers:
            self._leavers.append(rank)

    def _note_failure(self, rank: int, has_ended: bool) -> None:
        if self._first_failed is None:
            self._first_failed = rank
        if rank == self._first_failed:
            # It may end slowly, saving its work. The grace time of the others
            # begins when it has ended, or after as long a time for it.
            self._begin_grace(1 if has_ended else 2)

    def _begin_grace(self, times: int = 1) -> None:
        at = time.monotonic() + times * self._options.grace
        if self._next_kill is None or (
            self._next_kill[1] == signal.SIGTERM and self._next_kill[0] > at
        ):
            self._next_kill = (at, signal.SIGTERM)

    def _kill_if_due(self) -> None:
        if self._next_kill is None or time.monotonic() < self._next_kill[0]:
            return
        number = self._next_kill[1]
        for host in self._hosts:
            left = [
                self._ranks[rank]
                for rank in host.place.ranks()
                if not self._ranks[rank].has_ended
            ]
            for rank in left:
                self._output.say(
                    f"rank {rank.rank} ({rank.process}) still runs after the "
                    f"grace time; it gets {report.signal_name(number)}"
                )
                rank.sent = number
            for one in (number, signal.SIGCONT):
                if left:
                    ranks = [rank.rank for rank in left]
                    host.signal(one, ranks, to_groups=True)
        at = time.monotonic() + _TERMINATION_SECONDS
        self._next_kill = (at, signal.SIGKILL)

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
        first = self._first_to_blame()
        if first is None:
            return 0
        return report.exit_status(first, self._reasons.get(first.rank, ""))

    def _finish(self) -> int:
        first = self._first_to_blame()
        if first is None:
            return 0
        seconds = time.monotonic() - self._started_at
        reason = self._reasons.get(first.rank, "")
        if reason.startswith(PREEMPTED):
            saved = reason.removeprefix(PREEMPTED)
            self._output.say(f"{saved}; run it again to go on")
            return self._exit_status()
        self._output.say(report.verdict(first, reason, seconds))
        rows = []
        for rank in self._ranks:
            told = self._reasons.get(rank.rank, "")
            stderr = self._output.errors_of(rank.rank)
            line = report.last_error_line(stderr, told)
            rows.append((rank, line if rank.exit_status else ""))
        width = shutil.get_terminal_size((120, 24)).columns
        self._output.show(report.table(rows, width))
        return self._exit_status()

    def _first_to_blame(self) -> Rank | None:
        failed = [
            self._ranks[rank]
            for rank in self._leavers
            if self._ranks[rank].exit_status != 0
        ]
        # A rank that we had to end may have done all its work.
        by_themselves = [
            r for r in failed if r.sent is None or r.rank in self._reasons
        ]
        # Of another host, we may hear of the cause after its effects.
        causes = [
            r
            for r in by_themselves
            if self._plan.is_of_one_host
            or not self._reasons.get(r.rank, "").startswith("PeerLostError")
        ]
        return next(iter(causes or by_themselves or failed), None)
