"""Which rank of this host has a file or folder that a script makes by itself.

What a rank has made it has until it removes it, or another one has made it
anew. The ranks keep that in a file which the last one to end removes.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import pathlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from hvd_keras._common import log, user_code
from hvd_keras.distribution import _turns
from hvd_keras.distribution._callers import is_of_script

_MADE, _GONE, _END = "made", "gone", "end"
_told: list[Any] = []  # the first name that this rank alone has made
_within = threading.local()  # a function that does its work by others


def are_several() -> bool:
    """Whether the job has more than one rank."""
    return os.environ.get("HVD_SIZE", "1") != "1"


def leaves(path: Any, frame: Any) -> bool:
    """Whether one rank shall do for all what a script does with a path."""
    return (
        _turns.is_path(path)
        and not getattr(_within, "is_on", False)
        and is_of_script(frame)
        and not _knows_ranks()
    )


def place_of(path: Any) -> str:
    """Returns the one name of a path; a link is not followed."""
    folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
    return os.path.join(os.path.realpath(folder), name)


class Owners:
    """Knows who has what, as far as it has read."""

    def __init__(self) -> None:
        self._descriptor, self._num_read = -1, 0
        self._own = os.environ["HVD_LOCAL_RANK"]
        self._owners: dict[str, str] = {}
        # By turn and file, how often each other rank has removed it.
        self._num_gone: dict[tuple[int, str], dict[str, int]] = {}
        self._num_taken: dict[tuple[int, str], int] = {}  # or this one
        self._ended = {self._own}

    def read(self, descriptor: int) -> None:
        """Reads on in a file that this process alone has now."""
        self._descriptor = descriptor
        size = os.fstat(descriptor).st_size - self._num_read
        text = os.pread(descriptor, size, self._num_read).decode()
        self._num_read += size
        for line in text.splitlines():
            what, rank, turn, key = line.split(" ")
            if what == _MADE:
                self._owners[key] = rank
            elif what == _GONE:
                self._owners.pop(key, None)
                if rank != self._own:
                    gone = self._num_gone.setdefault((int(turn), key), {})
                    gone[rank] = gone.get(rank, 0) + 1
            else:
                self._ended.add(rank)

    def has(self, place: str) -> bool:
        """Whether some rank has it."""
        return _key(place) in self._owners

    def is_left(self, place: str) -> bool:
        """Whether another rank has it, and it is still there."""
        owner = self._owners.get(_key(place), self._own)
        return owner != self._own and os.path.lexists(place)

    def take(self, place: str) -> None:
        """Gives it to this rank."""
        if self._owners.get(_key(place)) != self._own:
            self._add(_MADE, _key(place))

    def drop(self, place: str) -> None:
        """Notes that this rank has removed it."""
        self._add(_GONE, _key(place))
        self.skip(place)

    def skip(self, place: str) -> None:
        """Counts a removal by which this rank is level with the others."""
        this = _turns.number(), _key(place)
        self._num_taken[this] = self._num_taken.get(this, 0) + 1

    def take_gone(self, place: str) -> bool:
        """Whether another rank has removed what this one would; once each."""
        this = _turns.number(), _key(place)
        num_gone = max(self._num_gone.get(this, {}).values(), default=0)
        num_taken = self._num_taken.get(this, 0)
        if os.path.lexists(place) or num_taken >= num_gone:
            return False
        self.skip(place)
        return True

    def have_removed(self, place: str) -> bool:
        """Whether other ranks have removed it, or what it is in, in this turn.

        They had made it, as this one does.
        """
        places = (place, *map(str, pathlib.Path(place).parents))
        turn = _turns.number()
        return any((turn, _key(each)) in self._num_gone for each in places)

    def end(self) -> bool:
        """Notes that this rank ends; returns whether all others have ended."""
        self._add(_END, "-")
        return len(self._ended) == int(os.environ["HVD_LOCAL_SIZE"])

    def _add(self, what: str, key: str) -> None:
        os.lseek(self._descriptor, 0, os.SEEK_END)
        line = f"{what} {self._own} {_turns.number()} {key}\n"
        os.write(self._descriptor, line.encode())


def tell_if_alone(path: Any) -> None:
    """Tells of a name that the first rank of this host has not made.

    This rank has made it in its turn, which comes after that of the first.
    """
    if not _turns.are_kept() or os.environ["HVD_LOCAL_RANK"] == "0" or _told:
        return
    with owners() as found:
        if found.have_removed(place_of(path)):
            return
    _told.append(path)
    log.mistake(
        "A rank makes a file or folder that rank 0 has not made: names that a "
        "script counts up by what is there, or takes from the time, its "
        "process or random numbers, differ by rank. Take one that all ranks "
        f"agree on, from an argument for example. Received: "
        f"{os.fsdecode(path)!r} on rank {os.environ['HVD_RANK']} at "
        f"{user_code.place()}."
    )


@functools.cache
def _known() -> Owners:
    return Owners()


@contextlib.contextmanager
def owners() -> Iterator[Owners]:
    """A context that one process of this host is in at a time."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(_path(), flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        found = _known()
        found.read(descriptor)
        yield found
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def in_turn() -> Iterator[Owners]:
    """The same, in the turn of this rank; what it calls is left alone."""
    _turns.wait()  # before: who is waited for may want what this holds
    with owners() as found:
        _within.is_on = True
        try:
            yield found
        finally:
            _within.is_on = False


def end() -> None:
    """Tidies up behind the last rank of this host."""
    with owners() as found:
        if found.end():
            os.unlink(_path())


def _path() -> str:
    return f"{_turns.of_host()}-files"


def _key(place: str) -> str:
    return hashlib.sha256(os.fsencode(place)).hexdigest()


@functools.cache
def _knows_ranks() -> bool:
    """Whether the script asks itself which rank it is."""
    try:
        return "HVD_RANK" in pathlib.Path(sys.argv[0]).read_text()
    except (OSError, ValueError):
        return False
