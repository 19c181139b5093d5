"""Starts the ranks, shows what they print and ends them together."""

from __future__ import annotations

import os
import resource
import secrets
import selectors
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from hvd_keras._job.bootstrap.listener import Listener
from hvd_keras._job.bootstrap.server import ExchangeServer
from hvd_keras.run import environment, horovod_compat, report
from hvd_keras.run.arguments import Options
from hvd_keras.run.guard import Guard
from hvd_keras.run.log_file import LogFile
from hvd_keras.run.output import RankStream, make_screens
from hvd_keras.run.process import RankProcess
from hvd_keras.run.repeats import Repeats
from hvd_keras.run.standard_input import StandardInput

# From SIGTERM to SIGKILL, after the grace time.
_TERMINATION_SECONDS = 3.0
# Time for output that comes after the last rank has ended.
_DRAIN_SECONDS = 0.5
_TO_GROUPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TO_RANKS = (signal.SIGUSR1, signal.SIGUSR2)  # they would kill a shell
_READ_BYTES = 64 << 10


class Supervisor:
    """One job, from start to end. Single-threaded."""

    def __init__(self, options: Options, environ: dict[str, str]) -> None:
        self._options = options
        self._environ = environ
        assert options.num_proc is not None
        self._size = options.num_proc
        self._selector = selectors.DefaultSelector()
        self._screens = make_screens(options.tag, options.timestamp)
        self._screens[0].on_failure = self._on_screen_failure
        self._processes: list[RankProcess] = []
        self._streams: dict[int, RankStream] = {}  # by descriptor
        self._errors: list[RankStream] = []  # stderr by rank
        self._reasons: dict[int, str] = {}  # told by failing ranks
        self._leavers: list[int] = []  # ranks that began to end, in order
        self._first_failed: int | None = None  # the first that we know of
        self._next_kill: tuple[float, int] | None = None  # when, which
        self._num_interrupts = 0
        self._passed_on: list[int] = []  # signals, to all ranks so far
        self._has_lost_log = False
        self._started_at = time.monotonic()

    def run(self) -> int:
        """Starts the ranks and returns when all have ended.

        Returns:
            The exit status for the launcher.
        """
        stdin = StandardInput(self._options.command)
        guard = Guard()
        self._raise_file_limit()
        listener = Listener(backlog=self._size + 64)
        secret = secrets.token_bytes(32)
        server = ExchangeServer(
            listener.socket, secret, self._size, self._on_report
        )
        self._selector.register(server.fileno(), selectors.EVENT_READ)
        self._server = server
        self._handle_signals()
        try:
            self._start(f"unix:{listener.address}", secret, guard, stdin)
            stdin.close()
            while any(p.exit_status is None for p in self._processes):
                self._step()
            self._drain()
        finally:
            for process in self._processes:
                process.kill_group(signal.SIGKILL)
            for stream in {*self._streams.values(), *self._errors}:
                stream.close()
            for process in self._processes:
                process.reap()
                guard.remove(process.pid)
            server.close()
            guard.close()
        return self._finish()

    # ---- Start ----

    def _raise_file_limit(self) -> None:
        # A rank needs two pipes, a pidfd, two log files and a connection.
        needed = 8 * self._size + 256
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < needed <= hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))

    def _handle_signals(self) -> None:
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._wakeup = reader
        self._selector.register(reader, selectors.EVENT_READ)
        for number in (*_TO_GROUPS, *_TO_RANKS):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._forward)

    def _forward(self, number: int, frame: FrameType | None) -> None:
        if number in _TO_GROUPS:
            self._begin_grace()
        if number == signal.SIGINT:
            self._num_interrupts += 1
        if self._num_interrupts > 1:
            number = signal.SIGKILL
        if number not in _TO_RANKS:
            self._passed_on.append(number)
        for process in self._processes:
            if process.exit_status is not None:
                continue
            if number in _TO_RANKS:
                process.kill(number)
            else:
                process.kill_group(number)

    def _start(
        self, address: str, secret: bytes, guard: Guard, stdin: StandardInput
    ) -> None:
        defaults = environment.defaults(self._environ, self._size)
        self._say_start(defaults)
        base = {**self._environ, **defaults}
        options = self._options
        screens = self._screens
        repeats = None if options.verbose else Repeats()
        for rank in range(self._size):
            environ = environment.of_rank(
                base, rank, self._size, address, secret
            )
            if options.horovod_compat:
                environ = horovod_compat.of_rank(environ)
            process = RankProcess(
                rank, options.command, environ, stdin.open_for(rank)
            )
            self._processes.append(process)
            for number in self._passed_on:  # while ranks were starting
                process.kill_group(number)
            self._server.rank_started(rank)
            guard.add(process.pid)
            self._selector.register(
                process.pidfd, selectors.EVENT_READ, process
            )
            is_shown = rank in (options.show_ranks or range(self._size))
            out = RankStream(
                rank,
                screens[0] if is_shown else None,
                self._open_file(rank, "stdout"),
                shows_growing=rank == 0 and screens[0].is_terminal,
            )
            err = RankStream(
                rank,
                screens[1] if is_shown else None,
                self._open_file(rank, "stderr"),
                repeats=repeats,
            )
            self._errors.append(err)
            for fd, stream in ((process.stdout, out), (process.stderr, err)):
                self._streams[fd] = stream
                self._selector.register(fd, selectors.EVENT_READ, stream)
            if options.verbose:
                self._say(f"rank {rank} started, pid {process.pid}")

    def _say_start(self, defaults: dict[str, str]) -> None:
        ranks = "1 rank" if self._size == 1 else f"{self._size} ranks"
        chosen = ", ".join(f"{n}={v}" for n, v in defaults.items())
        what = chosen or "threads and memory as set in the environment"
        cores = environment.num_cores()
        self._say(
            f"{ranks} on {cores} core{'s' * (cores > 1)}, each with {what}"
        )
        if sys.stdout is None:
            self._say(
                "the standard output is closed, so nobody sees what the ranks "
                "print there. Redirect it to a file, or use --output-dir."
            )

    def _open_file(self, rank: int, name: str) -> LogFile | None:
        if self._options.output_dir is None:
            return None
        path = Path(self._options.output_dir) / f"rank.{rank}" / name
        return LogFile(path, self._on_log_failure)

    def _on_screen_failure(self, error: OSError) -> None:
        if not isinstance(error, BrokenPipeError):  # the reader has left
            self._say(
                f"the standard output cannot be written: {error.strerror}. "
                "The job goes on, but nobody sees what the ranks print there. "
                "Free space, or redirect it elsewhere."
            )

    def _on_log_failure(self, path: Path, error: OSError) -> None:
        if not self._has_lost_log:
            self._has_lost_log = True
            self._say(
                f"{str(path)!r} cannot be written: {error.strerror}. The job "
                "goes on, but files of --output-dir will miss what the ranks "
                "print. Free space there, or choose another directory."
            )

    # ---- The loop ----

    def _step(self) -> None:
        ended: list[RankProcess] = []
        for key, _ in self._selector.select(self._time_left()):
            if isinstance(key.data, RankStream):
                self._read(key.fd)
            elif isinstance(key.data, RankProcess):
                ended.append(key.data)
            elif key.fd == self._wakeup:
                os.read(self._wakeup, 4096)
        for process in ended:
            self._selector.unregister(process.pidfd)
            process.note_exit()
        # If several ended together, one that was killed is the cause.
        for process in sorted(ended, key=lambda p: p.signal is None):
            self._on_exit(process)
        # After the exits: ranks that fail because of an exit say so only now.
        self._server.step()
        self._kill_if_due()

    def _time_left(self) -> float | None:
        deadlines = [self._server.next_deadline()]
        if self._next_kill is not None:
            deadlines.append(self._next_kill[0])
        known = [d for d in deadlines if d is not None]
        if not known:
            return None
        return max(0.0, min(known) - time.monotonic())

    def _read(self, fd: int) -> None:
        data = os.read(fd, _READ_BYTES)
        if data:
            self._streams[fd].feed(data)
            return
        self._selector.unregister(fd)
        self._streams.pop(fd).close()

    def _on_report(self, rank: int, reason: str) -> None:
        # A rank reports that it leaves before its peers can notice.
        self._note_leaving(rank)
        if reason:
            self._reasons.setdefault(rank, reason)
            self._note_failure(rank, has_ended=False)

    def _on_exit(self, process: RankProcess) -> None:
        self._note_leaving(process.rank)
        self._server.rank_exited(process.rank, process.describe_exit())
        if self._options.verbose:
            self._say(f"rank {process.rank} {process.describe_exit()}")
        if process.exit_status != 0:
            self._note_failure(process.rank, has_ended=True)

    def _note_leaving(self, rank: int) -> None:
        if rank < self._size and rank not in self._leavers:
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
        for process in self._processes:
            if process.exit_status is None:
                self._say(
                    f"rank {process.rank} (pid {process.pid}) still runs "
                    "after the grace time; it gets "
                    f"{report.signal_name(number)}"
                )
                process.sent = number
                process.kill_group(number)
                process.kill_group(signal.SIGCONT)
        at = time.monotonic() + _TERMINATION_SECONDS
        self._next_kill = (at, signal.SIGKILL)

    # ---- The end ----

    def _drain(self) -> None:
        # A rank's child may hold the output open: wait, then kill it and read
        # the rest.
        for kill in (False, True):
            if kill:
                for process in self._processes:
                    process.kill_group(signal.SIGKILL)
            deadline = time.monotonic() + _DRAIN_SECONDS
            while self._streams and time.monotonic() < deadline:
                self._server.step()
                left = max(0.0, deadline - time.monotonic())
                for key, _ in self._selector.select(min(left, 0.1)):
                    if isinstance(key.data, RankStream):
                        self._read(key.fd)
                    elif key.fd == self._wakeup:
                        os.read(self._wakeup, 4096)

    def _finish(self) -> int:
        first = self._first_to_blame()
        if first is None:
            return 0
        seconds = time.monotonic() - self._started_at
        reason = self._reasons.get(first.rank, "")
        self._say(report.verdict(first, reason, seconds))
        rows = []
        for process, stderr in zip(self._processes, self._errors, strict=True):
            told = self._reasons.get(process.rank, "")
            line = report.last_error_line(stderr, told)
            rows.append((process, line if process.exit_status else ""))
        width = shutil.get_terminal_size((120, 24)).columns
        self._show(report.table(rows, width))
        return report.exit_status(first, reason)

    def _first_to_blame(self) -> RankProcess | None:
        failed = [
            self._processes[rank]
            for rank in self._leavers
            if self._processes[rank].exit_status != 0
        ]
        # A rank that we had to end may have done all its work.
        by_themselves = [
            p for p in failed if p.sent is None or p.rank in self._reasons
        ]
        return next(iter(by_themselves or failed), None)

    def _say(self, message: str) -> None:
        self._show(f"hvdrun: {message}")

    def _show(self, text: str) -> None:
        self._screens[1].show_own_line(text.encode("utf-8", "replace"))
