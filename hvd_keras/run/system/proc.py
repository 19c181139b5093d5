"""What /proc says of the ranks of this host."""

from __future__ import annotations

import contextlib
import os
import signal


def state_of(pid: int) -> str:
    """The state of a process, such as "R" or "T" (stopped); "": it is gone."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def session_of(pid: int) -> int:
    """The process that leads the session of `pid`; 0: it is gone."""
    fields = _stat(pid)
    return int(fields[3]) if fields else 0


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            caught = [line for line in file if line.startswith("SigCgt:")]
    except OSError:
        return False
    return bool(caught) and bool(
        int(caught[0].split()[1], 16) >> (number - 1) & 1
    )


def interrupt(pid: int) -> None:
    """Sends SIGUSR2 to a process that has a handler for it."""
    if catches(pid, signal.SIGUSR2):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR2)


def _stat(pid: int) -> list[str]:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            return f.read().rpartition(")")[2].split()
    except OSError:
        return []
