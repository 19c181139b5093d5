"""A process that kills the ranks when the launcher dies suddenly.

The kernel kills a rank when its parent dies, but not the processes that the
rank has started. The guard reads from a pipe of the launcher. When the pipe
closes, the guard kills the process groups that the launcher named, and removes
its folders.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator

# Ranks that were killed may still write into a folder for a moment.
_REMOVAL_SECONDS = 2.0

# Within this time a process that was killed has ended.
_DEATH_SECONDS = 0.5


class Guard:
    """The launcher's end. Make it before any threads or ranks exist.

    Args:
        undo: Called with each folder before the guard removes it, when the
            ranks have been killed.
    """

    def __init__(self, undo: Callable[[str], None] | None = None) -> None:
        reader, self._writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._writer)
            try:
                _watch(reader, undo)
            finally:
                os._exit(0)
        os.close(reader)

    def add(self, group: int) -> None:
        """Adds a process group to those that the guard kills."""
        self._tell(b"+%d\n" % group)

    def remove(self, group: int) -> None:
        """Removes a process group from those that the guard kills."""
        self._tell(b"-%d\n" % group)

    def add_folder(self, path: str) -> None:
        """Adds a folder that the guard removes if `close` is not called."""
        self._tell(b"/" + os.fsencode(path) + b"\n")

    def close(self) -> None:
        """Ends the guard, which first kills the groups it still has."""
        self._tell(b"=\n")
        os.close(self._writer)
        os.waitpid(self._pid, 0)

    def _tell(self, change: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            os.write(self._writer, change)


@contextlib.contextmanager
def guarded_folder(
    prefix: str, undo: Callable[[str], None] | None = None
) -> Iterator[str]:
    """Yields a temporary folder that goes even if this process is killed.

    Use it before any threads exist.

    Args:
        prefix: What the folder's name begins with.
        undo: See `Guard`.
    """
    guard = Guard(undo)
    try:
        with tempfile.TemporaryDirectory(prefix=prefix) as folder:
            guard.add_folder(folder)
            yield folder
    finally:
        guard.close()


def _watch(reader: int, undo: Callable[[str], None] | None) -> None:
    os.setsid()  # so that the terminal's signals do not reach it
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    # Close the inherited streams: others wait for their end.
    with open(os.devnull, "r+b") as null:
        for descriptor in (0, 1, 2):
            os.dup2(null.fileno(), descriptor)
    groups: set[int] = set()
    folders: list[bytes] = []
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        rest = b""
        while data := pipe.read(4096):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                _note(line, groups, folders)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
    if undo is not None and folders:
        time.sleep(_DEATH_SECONDS)
        for folder in folders:
            with contextlib.suppress(OSError):
                undo(os.fsdecode(folder))
    until = time.monotonic() + _REMOVAL_SECONDS
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
        while os.path.exists(folder) and time.monotonic() < until:
            time.sleep(0.05)
            shutil.rmtree(folder, ignore_errors=True)


def _note(line: bytes, groups: set[int], folders: list[bytes]) -> None:
    if line[:1] == b"/":
        folders.append(line[1:])
    elif line == b"=":
        folders.clear()
    else:
        change = groups.add if line[:1] == b"+" else groups.discard
        change(int(line[1:]))
