"""One rank as a process of the launcher."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with(parent: int, number: int) -> None:
    """Has this process get a signal when its parent dies.

    Args:
        parent: The process that has started this one.
        number: The signal. If the parent is dead by now, this process ends.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def die_with_parent() -> Callable[[], None]:
    """Returns what a child must call so that it dies with this process."""
    return functools.partial(die_with, os.getpid(), signal.SIGKILL)


class RankProcess:
    """A rank, which leads its own process group."""

    def __init__(
        self,
        rank: int,
        command: Sequence[str],
        environ: Mapping[str, str],
        stdin: int,
    ) -> None:
        """Starts it.

        Args:
            rank: The rank.
            command: The program and its arguments.
            environ: The whole environment.
            stdin: A descriptor, which it owns from now on.
        """
        self.rank = rank
        try:
            self._popen = subprocess.Popen(
                command,
                env=environ,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=die_with_parent(),  # safe: there are no threads
            )
        finally:
            os.close(stdin)
        self.pid = self._popen.pid
        self.pidfd = os.pidfd_open(self.pid)
        self.exit_status: int | None = None  # 128 + signal
        self.signal: int | None = None  # the one that killed it
        assert self._popen.stdout is not None
        assert self._popen.stderr is not None
        self.stdout = self._popen.stdout.fileno()
        self.stderr = self._popen.stderr.fileno()

    def note_exit(self) -> None:
        """Reads how the process has ended, and leaves it a zombie.

        A zombie keeps its number, so the number still names its group.
        """
        options = os.WEXITED | os.WNOWAIT
        result = os.waitid(os.P_PID, self.pid, options)
        assert result is not None
        if result.si_code == os.CLD_EXITED:
            self.exit_status = result.si_status
        else:
            self.signal = result.si_status
            self.exit_status = 128 + self.signal

    def kill(self, number: int) -> None:
        """Sends a signal to the rank alone."""
        if self.exit_status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill_group(self, number: int) -> None:
        """Sends a signal to the rank and to the processes it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def reap(self) -> None:
        """Ends the zombie and frees its number."""
        self._popen.wait()
        os.close(self.pidfd)
        for file in (self._popen.stdout, self._popen.stderr):
            if file is not None:
                file.close()
