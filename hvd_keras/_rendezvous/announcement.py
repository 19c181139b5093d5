"""The file by which rank 0 tells the other ranks where its server listens.

Its name is known to all ranks. If rank 0 fails or dies, the file stays: a rank
that comes later learns from it that it waits in vain. A rank believes a file of
a process that has ended only if that was of the same job: the same launcher
started it, and the file is younger than the rank.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time

from hvd_keras._common import processes
from hvd_keras._common.json_text import parsed

_FORGET_SECONDS = 3600.0


@dataclasses.dataclass(frozen=True)
class Announcement:
    """Where rank 0 serves, or that it does so no more."""

    address: str
    pid: int
    start_ticks: int  # of the process
    launcher: str  # names the process that started it
    pid_namespace: str
    at: float  # when it was written, in seconds since boot
    failure: tuple[str, str] | None = None  # class and text of an error

    def is_alive(self) -> bool:
        """Whether the process that has written it still runs."""
        found = processes.find(self.pid)
        return (
            found is not None
            and found.runs
            and found.start_ticks == self.start_ticks
        )

    def why_not(self) -> tuple[str, str] | None:
        """Returns class and text of the error if nobody will serve any more.

        None: the server may still come, or this is of another job.
        """
        own = processes.find(os.getpid())
        if own is None or self.at < own.started_at:
            return None
        namespace = _pid_namespace()
        if self.pid_namespace != namespace:
            return "MismatchError", (
                "All ranks must be in one container (one PID namespace). "
                f"Received: rank 0 in {self.pid_namespace}, this rank in "
                f"{namespace}. Start all ranks in the same container, or let "
                "the containers share their processes (--pid)."
            )
        if self.launcher != _launcher_of(own):
            return None
        if self.failure is not None:
            return self.failure
        if self.is_alive():
            return None
        return "PeerLostError", (
            f"Rank 0 (pid {self.pid}) has ended before the job was up."
        )


def announce(
    path: str, address: str, failure: tuple[str, str] | None = None
) -> None:
    """Writes the announcement of this process to `path`.

    Raises:
        OSError: The file could not be written.
    """
    own = processes.find(os.getpid())
    value = Announcement(
        address,
        os.getpid(),
        own.start_ticks if own else 0,
        _launcher_of(own),
        _pid_namespace(),
        time.clock_gettime(time.CLOCK_BOOTTIME),
        failure,
    )
    draft = f"{path}.{os.getpid()}"
    try:
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(value), file)
        os.replace(draft, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def read(path: str) -> Announcement | None:
    """Returns what is announced at `path`; None if nothing is."""
    try:
        with open(path, encoding="utf-8") as file:
            value = Announcement(**parsed(file.read()))
    except (OSError, ValueError, TypeError):
        return None
    if value.failure is None:
        return value
    name, text = value.failure
    return dataclasses.replace(value, failure=(str(name), str(text)))


def withdraw(path: str, address: str) -> None:
    """Removes the announcement of `address`, if it is still at `path`."""
    found = read(path)
    if found is not None and found.address == address:
        with contextlib.suppress(OSError):
            os.unlink(path)


def forget_old(directory: str) -> None:
    """Removes announcements that no rank can be waiting for."""
    for entry in os.scandir(directory):
        with contextlib.suppress(OSError):
            age = time.time() - entry.stat(follow_symlinks=False).st_mtime
            found = read(entry.path)
            if age > _FORGET_SECONDS and not (found and found.is_alive()):
                os.unlink(entry.path)


def _launcher_of(own: processes.Process | None) -> str:
    launcher = processes.find(own.parent) if own else None
    if own is None or launcher is None:
        return ""
    return f"{own.parent}.{launcher.start_ticks}"


def _pid_namespace() -> str:
    return os.readlink("/proc/self/ns/pid")
