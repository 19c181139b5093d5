"""Files that a script opens by itself to write in them: one rank does it.

The first rank of a host that writes in a file has it. What another one writes
there goes nowhere: all have the same text, and one copy of it is there. A rank
whose file is gone, as it has removed it by now, makes and has the next one.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import fcntl
import functools
import hashlib
import io
import os
import pathlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from hvd_keras._common import log
from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.replacements import replace
from hvd_keras.distribution import _turns
from hvd_keras.distribution._callers import is_of_script

_NEW = frozenset("wx")
_told: set[str] = set()
_MOST_TOLD = 8
_SECONDS = 0.01
_patience = 5.0  # seconds in all that this rank waits for the first one
_left: set[str] = set()  # files to which another rank has appended for this one


def share() -> None:
    """Lets one rank of each host write the script's own files."""
    if os.environ.get("HVD_LOCAL_SIZE", "1") == "1":
        return
    for module in (builtins, io):
        replace(module, "open", _by_one_rank)
    atexit.register(_end)  # before what the script registers: so it runs behind


def _by_one_rank(original: Any) -> Any:
    @as_it_is
    @functools.wraps(original)
    def open_file(file: Any, mode: Any = "r", *args: Any, **kw: Any) -> Any:
        if (
            not isinstance(mode, str)
            or "+" in mode
            or {"w", "x", "a"}.isdisjoint(mode)
            or not isinstance(file, str | bytes | os.PathLike)
            or not is_of_script(sys._getframe(1))
            or _knows_ranks()
        ):
            return original(file, mode, *args, **kw)
        place = os.path.realpath(os.fsdecode(file))
        if os.path.exists(place) and not os.path.isfile(place):
            return original(file, mode, *args, **kw)
        # Before the lock: who is waited for may want that.
        _turns.wait()
        _await_first(place)
        with _owners() as owners:
            if owners.is_left(place) and not _may_make(place, mode):
                return original(os.devnull, mode.replace("x", "w"), *args, **kw)
            made = original(file, mode, *args, **kw)
            owners.take(place)
        _tell_of(os.fsdecode(file))
        return made

    return open_file


def _await_first(place: str) -> None:
    """Lets the first rank of this host have a file, if it comes soon.

    Where ranks have no turns, any one may be there first.
    """
    global _patience
    if _turns.are_kept() or os.environ["HVD_LOCAL_RANK"] == "0":
        return
    while _patience > 0:
        with _owners() as owners:
            if owners.has(place):
                return
        time.sleep(_SECONDS)
        _patience -= _SECONDS


def _may_make(place: str, mode: str) -> bool:
    """Whether a rank makes a file anew that another one has.

    In calls that ranks share, no rank waits for others: it may read what it
    has just written.
    """
    if "a" in mode:
        _left.add(place)
        return False
    return _turns.is_in_call() and place not in _left


class _Owners:
    """Knows which rank of this host has which file.

    Args:
        descriptor: A file that this process alone has now.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        size = os.fstat(descriptor).st_size
        text = os.pread(descriptor, size, 0).decode()
        self._ranks = dict(line.split() for line in text.splitlines())
        self._own = os.environ["HVD_LOCAL_RANK"]

    def has(self, place: str) -> bool:
        """Whether some rank has the file."""
        return _key(place) in self._ranks

    def is_left(self, place: str) -> bool:
        """Whether another rank has the file, and it is still there."""
        owner = self._ranks.get(_key(place), self._own)
        if self._own == "0" and not _turns.have_begun():
            return False
        return owner != self._own and os.path.isfile(place)

    def take(self, place: str) -> None:
        """Gives this rank a file."""
        if self._ranks.get(_key(place)) != self._own:
            self._add(_key(place))

    def end(self) -> bool:
        """Notes that this rank ends; returns whether all others have ended."""
        self._add(f"end-{self._own}")
        ended = {key for key in self._ranks if key.startswith("end-")}
        ended.add(f"end-{self._own}")
        return len(ended) == int(os.environ["HVD_LOCAL_SIZE"])

    def _add(self, key: str) -> None:
        os.lseek(self._descriptor, 0, os.SEEK_END)
        os.write(self._descriptor, f"{key} {self._own}\n".encode())


def _key(place: str) -> str:
    return hashlib.sha256(os.fsencode(place)).hexdigest()


@contextlib.contextmanager
def _owners() -> Iterator[_Owners]:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(f"{_turns.of_host()}-files", flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield _Owners(descriptor)
    finally:
        os.close(descriptor)


def _end() -> None:
    with _owners() as owners:
        if owners.end():
            os.unlink(f"{_turns.of_host()}-files")


def _tell_of(name: str) -> None:
    """Says of the first files that each host writes them."""
    num_hosts = int(os.environ.get("HVD_CROSS_SIZE", "1"))
    is_first = os.environ["HVD_RANK"] == "0" and len(_told) < _MOST_TOLD
    if num_hosts == 1 or name in _told or not is_first:
        return
    _told.add(name)
    log.info(
        f"{name!r}: one rank of each of {num_hosts} hosts writes this file of "
        f"{sys.argv[0]}. For one copy where hosts share it, write it where "
        '`os.environ.get("HVD_RANK", "0") == "0"`.'
    )


@functools.cache
def _knows_ranks() -> bool:
    """Whether the script asks itself which rank it is."""
    try:
        return "HVD_RANK" in pathlib.Path(sys.argv[0]).read_text()
    except (OSError, ValueError):
        return False
