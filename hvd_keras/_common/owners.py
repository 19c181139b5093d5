"""Which process may write a file: one at a time, of whatever job and host.

Who writes `NAME` says so in the file `.NAME.owner` beside it. Another process
then waits for some seconds, and is refused. It takes over at once if the first
has ended, as the kernel says. Of another host (or container) the kernel says
nothing: there an owner renews its file every few seconds, and one that has not
done so for longer has ended. The ages are by the clock of the file system, for
those of hosts differ. NFS shows a new time when a file is opened, and its locks
may be missing: two that take over in the same millisecond may then both
succeed, and one of them is refused when it writes.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import datetime
import errno
import fcntl
import hashlib
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator

from hvd_keras._common import processes
from hvd_keras._common.paths import is_remote
from hvd_keras.exceptions import FileInUseError

_BEAT_SECONDS = 5.0
_STALE_SECONDS = 30.0  # more than a server of files is away for
_PATIENCE_SECONDS = 10.0  # a job that is being ended takes so long
_LOCK_SECONDS = 2.0


@dataclasses.dataclass(frozen=True)
class Writer:
    """A process.

    Args:
        host: Its host, for people.
        kernel: Tells in which kernel and container its pid counts.
        pid: Its pid there.
        start_ticks: When it started; with the pid it names one process.
    """

    host: str
    kernel: str
    pid: int
    start_ticks: int

    @classmethod
    def of_name(cls, name: str) -> Writer:
        """Returns the process that has this name."""
        kernel, pid, ticks = name.split("-")
        return cls("", kernel, int(pid), int(ticks))

    @property
    def name(self) -> str:
        """A name that no other process has: letters, digits and dashes."""
        return f"{self.kernel}-{self.pid}-{self.start_ticks}"

    def has_ended(self, is_stale: Callable[[], bool]) -> bool:
        """Whether it is no more.

        Args:
            is_stale: Whether its file is old; asked where the kernel does not
                know it.
        """
        if self.kernel != _kernel():
            return is_stale()
        process = processes.find(self.pid)
        if process is not None:
            return not process.runs or process.start_ticks != self.start_ticks
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:  # of another user, whom /proc hides
            pass
        return is_stale()


@dataclasses.dataclass(frozen=True)
class _Record:
    """What the file of an owner says."""

    writer: Writer
    since: float
    renewed_at: float  # by the clock of the file system

    @property
    def is_of_here(self) -> bool:
        return self.writer.kernel == _kernel()


def me() -> Writer:
    """Returns this process."""
    pid = os.getpid()
    own = processes.find(pid)
    ticks = 0 if own is None else own.start_ticks
    return Writer(socket.gethostname(), _kernel(), pid, ticks)


def _kernel() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            name = file.read() + os.readlink("/proc/self/ns/pid")
    except OSError:
        name = socket.gethostname()
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def claim(
    path: str,
    *,
    of_job: Collection[str] = (),
    tell: Callable[[str], None] = lambda text: None,
    keeps_alive: bool = True,
) -> str:
    """Makes this process the only one that writes `path`.

    Without a competitor it takes some system calls; if this process owns the
    path already, one read. An object in a store ("://") has no owner.

    Args:
        path: What will be written. Parts in braces, as in the paths of
            ModelCheckpoint, stand for themselves.
        of_job: Names of processes of the same job, which hand over.
        tell: Gets a line if another process writes there.
        keeps_alive: Whether a thread renews the file. Otherwise the caller
            calls `renew`.

    Returns:
        The name of the owner: this process.

    Raises:
        FileInUseError: Another process writes there.
        OSError: The folder cannot be written to.
    """
    if is_remote(path):
        return ""
    place = _place_of(path)
    mine = me()
    with _changing:
        found = _look(place)
        if place in _held and found is not None:
            if found.writer == mine:
                return mine.name
            if found.writer.name not in of_job:
                _held.discard(place)
                raise _in_use(path, found)
        _acquire(path, place, mine, of_job, tell)
        _held.add(place)
    if keeps_alive:
        _begin_renewing()
    return mine.name


def is_full(error: OSError) -> bool:
    """Whether an error tells of a full disk, on which nobody can own a path."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def release(path: str) -> None:
    """Lets others write `path`; does nothing unless this process owns it."""
    if is_remote(path):
        return
    with _changing:
        _release(_place_of(path))


def is_owner() -> bool:
    """Whether this process owns anything."""
    return bool(_held)


def renew() -> None:
    """Tells other hosts that this process is still there."""
    for place in list(_held):
        with contextlib.suppress(OSError):
            found = _look(place)
            if found is not None and found.writer == me():
                os.utime(place)


def _acquire(
    path: str,
    place: str,
    mine: Writer,
    of_job: Collection[str],
    tell: Callable[[str], None],
) -> None:
    began = time.monotonic()
    first = None
    while True:
        with _locked(place) as fd:
            other = _read(fd)
            if other is None or _may_replace(place, other, mine, of_job):
                _write(fd, place, mine)
                return
        if first is None:
            tell(f"{_who(other)} writes {path!r}: waiting for its end")
        if first is None or first.writer != other.writer:
            first = other
        if time.monotonic() - began > _PATIENCE_SECONDS and (
            other.is_of_here or other.renewed_at > first.renewed_at
        ):
            raise _in_use(path, other)
        time.sleep(0.2)


def _may_replace(
    place: str, other: _Record, mine: Writer, of_job: Collection[str]
) -> bool:
    if other.writer == mine or other.writer.name in of_job:
        return True
    folder = os.path.dirname(place)
    return other.writer.has_ended(
        lambda: age_seconds(other.renewed_at, folder) > _STALE_SECONDS
    )


def age_seconds(changed_at: float, folder: str) -> float:
    """Returns how long ago a file has changed, by the file system's clock."""
    with tempfile.TemporaryFile(dir=folder) as file:
        return os.fstat(file.fileno()).st_mtime - changed_at


def _place_of(path: str) -> str:
    folder, name = os.path.split(os.path.abspath(path))
    while "{" in folder:
        folder, last = os.path.split(folder)
        name = f"{last}%{name}"
    return os.path.join(folder, f".{name}.owner")


@contextlib.contextmanager
def _locked(place: str) -> Iterator[int]:
    """Yields the open file of an owner, locked where locks work."""
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        fd = _open(place)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # it takes milliseconds
                if time.monotonic() < end:
                    time.sleep(0.01)
                    continue
            except OSError:  # a file system without locks
                pass
            if _is_at(place, fd):  # else its owner has just removed it
                yield fd
                return
        finally:
            os.close(fd)


def _open(place: str) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    while True:
        os.makedirs(os.path.dirname(place), exist_ok=True)
        # A job that ends removes a folder that it has made.
        with contextlib.suppress(FileNotFoundError):
            return os.open(place, flags, 0o666)


def _is_at(place: str, fd: int) -> bool:
    try:
        return os.path.samestat(os.stat(place), os.fstat(fd))
    except FileNotFoundError:
        return False


def _look(place: str) -> _Record | None:
    try:
        fd = os.open(place, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        return _read(fd)
    finally:
        os.close(fd)


def _read(fd: int) -> _Record | None:
    """Returns what a file says; None if its owner died before it said it."""
    try:
        known = json.loads(os.pread(fd, 1 << 12, 0))
        since = float(known.pop("since"))
        return _Record(Writer(**known), since, os.fstat(fd).st_mtime)
    except (ValueError, TypeError, LookupError, AttributeError):
        return None


def _write(fd: int, place: str, mine: Writer) -> None:
    known = {**dataclasses.asdict(mine), "since": time.time()}
    text = json.dumps(known).encode()
    try:
        if os.pwrite(fd, text, 0) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(fd, len(text))
        os.fsync(fd)
    except OSError as error:
        with contextlib.suppress(OSError):
            os.unlink(place)
        error.filename = place
        raise


def _release(place: str) -> None:
    if place not in _held:
        return
    _held.discard(place)
    with contextlib.suppress(OSError):
        found = _look(place)
        if found is not None and found.writer == me():
            with _locked(place) as fd:
                found = _read(fd)
                if found is not None and found.writer == me():
                    os.unlink(place)


def _who(record: _Record) -> str:
    since = datetime.datetime.fromtimestamp(record.since)
    where = f"host {record.writer.host}, pid {record.writer.pid}"
    return f"{where}, since {since:%Y-%m-%d %H:%M:%S}"


def _in_use(path: str, other: _Record) -> FileInUseError:
    return FileInUseError(
        f"{path!r} must be written by one job at a time. Received: another "
        f"writes it ({_who(other)}). End that job, or choose another path."
    )


_held: set[str] = set()  # files of owners, which this process has written
_changing = threading.Lock()
_renewing: threading.Thread | None = None


def _begin_renewing() -> None:
    global _renewing
    if _renewing is None or not _renewing.is_alive():
        _renewing = threading.Thread(
            target=_renew_always, name="hvd_keras owner", daemon=True
        )
        _renewing.start()


def _renew_always() -> None:
    while True:
        time.sleep(_BEAT_SECONDS)
        renew()


def _forget_in_child() -> None:
    global _changing
    _changing = threading.Lock()
    _held.clear()


os.register_at_fork(after_in_child=_forget_in_child)


@atexit.register
def _release_all() -> None:
    for place in list(_held):
        _release(place)
