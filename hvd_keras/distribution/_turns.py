"""Files that a script makes: one rank of a host at a time.

Scripts look whether a folder is there, make it, download, unpack and read. A
rank that did so beside another would take a folder for whole that is half
made, or read a file that is written again. So a rank waits, where the script
first does such a thing, until the one before it on this host has come to the
next call that ranks share, or has ended. A collective in a loop of the script
is such a call: a rank that waits there lets the others go on. Files from before
the job are read without waiting.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import inspect
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from hvd_keras import _native
from hvd_keras._common import log
from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.replacement_table import LOOK_FOR_FILES, WRITE_FILES
from hvd_keras._common.replacements import replace, replace_calls
from hvd_keras._common.when_imported import call_when_imported
from hvd_keras.distribution._callers import (
    FETCHERS,
    is_of_script,
    is_of_this_job,
)

# What an audit hook hears of.
_READS = frozenset(["open", "os.listdir", "os.scandir"])
_CHANGES = frozenset(
    "os.mkdir os.remove os.rename os.rmdir os.system shutil.copyfile "
    "shutil.copytree shutil.make_archive shutil.move shutil.rmtree "
    "shutil.unpack_archive subprocess.Popen".split()
)
_LOOKS = frozenset(" ".join(LOOK_FOR_FILES.values()).split())
_SECONDS_TO_TELL = 10.0
_SECONDS_TO_LOOK = 0.25
_MOST_LOOKS = 4  # at which a collective waits
_stat = os.stat  # Python's

_own: int | None = None  # the lock that this rank holds until its turn ends
_turn = 0  # equal on all ranks where they meet
_rank = 0  # on this host
_num_ranks = 1
_may_go = True  # the rank before this one has had its turn
_waiting = threading.RLock()
_changing = threading.Lock()  # guards the next two
_in_call = False  # that all ranks share
_has_let_go = False  # before its turn has ended


@contextlib.contextmanager
def beginning() -> Iterator[None]:
    """A context in which ranks meet first: behind it turns begin."""
    global _own, _rank, _num_ranks, _may_go
    _num_ranks = int(os.environ.get("HVD_LOCAL_SIZE", "1"))
    if _num_ranks == 1:
        yield
        return
    _rank = int(os.environ["HVD_LOCAL_RANK"])
    _own = _taken(0)
    yield
    threading.Thread(target=_let_go_in_collectives, daemon=True).start()
    if _rank > 0:
        _may_go = False
        replace(os, "stat", _awaiting)
        sys.addaudithook(_hear)
        call_when_imported(
            {
                package: functools.partial(_hear_calls, package)
                for package in ("tensorflow", "h5py", "torch")
            }
        )


@contextlib.contextmanager
def ranks_meet() -> Iterator[None]:
    """A context for a call that all ranks share; it ends the turn of each.

    The next one begins behind it. It waits until the other ranks of this host
    have come to the call, or have ended.
    """
    global _own, _turn, _may_go, _in_call, _has_let_go
    if _own is None:
        yield
        return
    with _changing:
        _in_call, had_let_go = True, _has_let_go
    # Whoever has waited for this turn finds the lock of the next. All of this
    # comes before the wait, which an interrupt may end.
    done, turn = _own, _turn
    _own, _turn, _may_go = _taken(turn + 1), turn + 1, True
    try:
        if not had_let_go:
            _let_go(done, turn)
        _wait_for(range(_num_ranks), turn, "have come to the same call")
        yield
    finally:
        _may_go = _rank == 0
        with _changing:
            _in_call = _has_let_go = False


def end() -> None:
    """Lets the ranks behind this one go on, when it ends."""
    global _own
    with _changing:
        if _own is not None and not _has_let_go:
            _let_go(_own, _turn)
        _own = None


def _let_go_in_collectives() -> None:
    """Ends a turn early while this rank waits in a collective of the script.

    The rank that it waits for may itself wait for the turn.
    """
    global _has_let_go
    num_looks = 0
    while True:
        time.sleep(_SECONDS_TO_LOOK)
        is_outside = not _in_call and not _has_let_go
        waits = is_outside and _native.core().num_pending() > 0
        num_looks = num_looks + 1 if waits else 0
        if num_looks < _MOST_LOOKS:
            continue
        with _changing:
            if _own is None:
                return
            if not _in_call:
                _let_go(_own, _turn)
                _has_let_go = True


def have_begun() -> bool:
    """Whether the ranks of this host have met."""
    return _own is not None


def number() -> int:
    """Returns how often the ranks have met; that of one that waits is equal."""
    return _turn


def is_in_call() -> bool:
    """Whether this rank is in a call that all ranks share."""
    return _in_call


def are_kept() -> bool:
    """Whether each rank waits for the one before it."""
    return have_begun() and not _in_call


def wait() -> None:
    """Waits for the turn of this rank."""
    global _may_go
    with _waiting:
        if _may_go:
            return
        _may_go = True  # what follows opens files, too
        try:
            _wait_for(range(_rank), _turn, "have made their files")
        except BaseException:  # such as an interrupt
            _may_go = False
            raise


def _taken(turn: int) -> int:
    """Returns the lock of a turn of this rank, which has it now."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(_path(_rank, turn), flags, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _let_go(lock: int, turn: int) -> None:
    with contextlib.suppress(FileNotFoundError):  # somebody tidies up
        os.unlink(_path(_rank, turn))
    fcntl.flock(lock, fcntl.LOCK_UN)  # also of the processes that it forked
    os.close(lock)


def _wait_for(ranks: Iterable[int], turn: int, until: str) -> None:
    """Waits until a turn of some ranks of this host has ended."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    for rank in ranks:
        try:
            lock = os.open(_path(rank, turn), flags)
        except FileNotFoundError:
            continue
        text = f"waiting until rank {rank} of this host, or more, {until}."
        timer = threading.Timer(_SECONDS_TO_TELL, log.info, [text])
        timer.daemon = True
        timer.start()
        try:
            fcntl.flock(lock, fcntl.LOCK_SH)
        finally:
            timer.cancel()
            os.close(lock)


def _path(rank: int, turn: int) -> str:
    """Returns the lock of a turn of a rank of this host."""
    return f"{of_host()}-{rank}-{turn}"


@functools.cache  # a script may change its environment
def of_host() -> str:
    """Returns how the files begin by which the ranks of a host agree."""
    names = ("HVD_RENDEZVOUS", "HVD_SECRET", "HVD_CROSS_RANK")
    job = repr([os.environ.get(name) for name in names]).encode()
    name = f"hvd-turn-{hashlib.sha256(job).hexdigest()[:32]}"
    return os.path.join(tempfile.gettempdir(), name)


def _awaiting(original: Any) -> Any:
    """Lets the script look for a file when nobody else is making it."""

    @functools.wraps(original)
    def stat(path: Any, *args: Any, **kw: Any) -> Any:
        if (
            not _may_go
            and _may_be_made(path)
            and is_of_script(sys._getframe(1), FETCHERS)
        ):
            wait()
        return original(path, *args, **kw)

    return stat


def _hear_calls(package: str) -> None:
    """Hears of what a package does with files at the calls of the script."""
    calls = [*WRITE_FILES.items(), *LOOK_FOR_FILES.items()]
    replace_calls(package, calls, _in_turn)


def _in_turn(place: str, original: Any) -> Any:
    """Returns a function that waits where the script calls it for files."""
    name = place.rpartition(".")[2]
    signature = inspect.signature(original)

    @as_it_is
    @functools.wraps(original)
    def call(*args: Any, **kw: Any) -> Any:
        if not _may_go and is_of_script(sys._getframe(1), FETCHERS):
            bound = signature.bind(*args, **kw)
            bound.apply_defaults()
            given = bound.arguments
            looks = name in _LOOKS or given.get("mode") in ("r", "rb")
            path = next(filter(is_path, given.values()), "")
            if not looks or _may_be_made(_without_pattern(path)):
                wait()
        return original(*args, **kw)

    return call


def _without_pattern(path: Any) -> str:
    """Returns the folder in which `glob` looks, or the path itself."""
    whole, found = os.fsdecode(path), re.split(r"[*?[]", os.fsdecode(path))
    return whole if len(found) == 1 else os.path.dirname(found[0]) or "."


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _may_go or not (event in _READS or event in _CHANGES):
        return
    if event in _READS:
        path = arguments[0]
        mode = arguments[1] if event == "open" else None
        writes = isinstance(mode, str) and not set(mode).isdisjoint("wax+")
        if not (_may_be_written(path) if writes else _may_be_made(path)):
            return
    if is_of_script(sys._getframe(1), FETCHERS):
        wait()


def _may_be_written(path: Any) -> bool:
    return is_path(path) and os.fspath(path) != os.devnull


def _may_be_made(path: Any) -> bool:
    """Whether a rank may make this now: it is new or not yet there."""
    try:
        return is_path(path) and is_of_this_job(_stat(path))
    except OSError:
        return True


def is_path(path: Any) -> bool:
    """Whether it is no file that is open."""
    return isinstance(path, str | bytes | os.PathLike)
