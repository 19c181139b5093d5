"""Starts the ranks of this host, reads what they print and ends them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from hvd_keras.run.ranks.guard import Guard
from hvd_keras.run.ranks.process import RankProcess
from hvd_keras.run.system import proc
from hvd_keras.run.system.loop import Loop

_READ_BYTES = 64 << 10
# How often to look for stopped ranks of an elastic job, and their patience.
_LOOK_SECONDS = 0.3
_STOPPED_SECONDS = 0.5


class Watcher(Protocol):
    """Hears of the ranks of a host."""

    def rank_started(self, rank: int, pid: int) -> None: ...

    def rank_wrote(self, rank: int, stream: int, data: bytes) -> None:
        """Gets what came on stream 1 or 2; b"": nothing will come any more."""

    def rank_exited(
        self, rank: int, exit_status: int, killed_by: int | None
    ) -> None: ...


class HostRanks:
    """The ranks of this host. Make it before any threads exist."""

    def __init__(
        self, loop: Loop, watcher: Watcher, *, read_bytes: int = _READ_BYTES
    ) -> None:
        self._loop = loop
        self._watcher = watcher
        self._read_bytes = read_bytes
        self._guard = Guard()
        self._processes: dict[int, RankProcess] = {}
        self._ended: list[RankProcess] = []  # but not yet told
        self._streams: dict[int, Callable[[], None]] = {}  # by descriptor
        self._is_paused = False
        self._releases_ended = False
        self._looks_at: float | None = None  # monotonic; None: never
        self._stopped_since: dict[int, float] = {}  # by rank
        self._passed_on: list[int] = []  # signals, to all ranks so far

    def start(
        self,
        command: Sequence[str],
        environs: Iterable[tuple[int, Mapping[str, str]]],
        open_stdin: Callable[[int], int],
    ) -> None:
        """Starts ranks.

        Args:
            command: The program and its arguments.
            environs: Each rank and its whole environment.
            open_stdin: Returns a descriptor for the rank, which it then owns.
        """
        for rank, environ in environs:
            process = RankProcess(rank, command, environ, open_stdin(rank))
            self._processes[rank] = process
            for number in self._passed_on:  # while ranks were starting
                process.kill_group(number)
            self._guard.add(process.pid)
            self._loop.watch(process.pidfd, partial(self._on_exit, process))
            self._watcher.rank_started(rank, process.pid)
            for stream, fd in ((1, process.stdout), (2, process.stderr)):
                self._streams[fd] = partial(self._read, fd, rank, stream)
                self._loop.watch(fd, self._streams[fd])

    def signal(
        self, number: int, ranks: Iterable[int] | None, *, to_groups: bool
    ) -> None:
        """Sends a signal; handlers of signals may call this.

        Args:
            number: The signal.
            ranks: The ranks that get it; None: all, those to come too.
            to_groups: Whether the processes that they have started get it too.
        """
        if ranks is None and to_groups:
            self._passed_on.append(number)
        chosen = None if ranks is None else set(ranks)
        for rank, process in list(self._processes.items()):
            if process.exit_status is not None:
                continue
            if chosen is None or rank in chosen:
                kill = process.kill_group if to_groups else process.kill
                kill(number)

    def tell_exits(self) -> None:
        """Tells of the ranks that have ended. Call it after each step."""
        ended, self._ended = self._ended, []
        for process in ended:
            process.note_exit()
        # They ended together, as far as one knows. Blame follows from the
        # order: one that was killed is no effect of another, and comes first.
        for process in sorted(ended, key=lambda p: p.signal is None):
            assert process.exit_status is not None
            self._watcher.rank_exited(
                process.rank, process.exit_status, process.signal
            )
            if self._releases_ended:
                process.kill_group(signal.SIGKILL)
                self._release(process)

    def release_ended(self, *, kills_stopped: bool) -> None:
        """From now on frees what ranks need when they have ended.

        What they have started is killed then. Others may take their places.

        Args:
            kills_stopped: Whether to kill ranks that are stopped for a moment.
        """
        self._releases_ended = True
        if kills_stopped and self._looks_at is None:
            self._looks_at = time.monotonic()

    def next_deadline(self) -> float | None:
        """Returns the monotonic time by which `kill_stopped()` must run."""
        return self._looks_at

    def kill_stopped(self) -> None:
        """Kills ranks that have been stopped for too long, if it may."""
        now = time.monotonic()
        if self._looks_at is None or now < self._looks_at:
            return
        self._looks_at = now + _LOOK_SECONDS
        stopped = {
            rank: self._stopped_since.get(rank, now)
            for rank, pid in self.pids().items()
            if proc.state_of(pid) in ("T", "t")
        }
        self._stopped_since = stopped
        for rank, since in stopped.items():
            if now - since > _STOPPED_SECONDS:
                self._processes[rank].kill_group(signal.SIGKILL)

    def pause(self, is_paused: bool) -> None:
        """Stops reading what the ranks print, or goes on with it."""
        if is_paused == self._is_paused:
            return
        self._is_paused = is_paused
        for fd, call in self._streams.items():
            if is_paused:
                self._loop.forget(fd)
            else:
                self._loop.watch(fd, call)

    def pids(self) -> dict[int, int]:
        """Returns the processes of the ranks that have not ended."""
        return {
            rank: process.pid
            for rank, process in self._processes.items()
            if process.exit_status is None
        }

    def remove_if_killed(self, folder: str) -> None:
        """Has a folder removed if this process dies suddenly."""
        self._guard.add_folder(folder)

    def any_runs(self) -> bool:
        """Whether a rank has not ended."""
        processes = self._processes.values()
        return any(process.exit_status is None for process in processes)

    def kill(self) -> None:
        """Kills what is left of the ranks and of what they have started."""
        for process in self._processes.values():
            process.kill_group(signal.SIGKILL)

    def close(self) -> None:
        """Kills all that is left, and frees everything."""
        self.pause(True)
        self.kill()
        for process in self._processes.values():
            process.reap()
            self._guard.remove(process.pid)
        self._guard.close()

    def _on_exit(self, process: RankProcess) -> None:
        self._loop.forget(process.pidfd)
        self._ended.append(process)

    def _read(self, fd: int, rank: int, stream: int) -> None:
        data = os.read(fd, self._read_bytes)
        if not data:
            self._loop.forget(fd)
            del self._streams[fd]
        self._watcher.rank_wrote(rank, stream, data)
        if not data and self._releases_ended and rank in self._processes:
            self._release(self._processes[rank])

    def _release(self, process: RankProcess) -> None:
        is_read = not {process.stdout, process.stderr} & self._streams.keys()
        if is_read and process.exit_status is not None:
            process.reap()
            self._guard.remove(process.pid)
            del self._processes[process.rank]
