"""Folders that all ranks of a script make: each takes that of another.

A rank that makes a folder twice still gets an error the second time, and one
that removes a folder of its own finds it removed: a folder may be a lock.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from hvd_keras._common.replacements import replace
from hvd_keras.distribution import _owners, _turns
from hvd_keras.distribution._callers import is_of_this_job

_made: set[str] = set()  # what this rank believes to have made


def share() -> None:
    """Lets this rank take, and drop, folders that another one has made."""
    replace(os, "mkdir", _made_by_any)
    replace(os, "rmdir", _removed_by_any)


def _made_by_any(original: Any) -> Any:
    def mkdir(path: Any, *args: Any, **kw: Any) -> None:
        place = _place(path)
        try:
            original(path, *args, **kw)
        except FileExistsError:
            is_own = place in _made or not os.path.isdir(path)
            if is_own or not is_of_this_job(os.stat(path)):
                raise
        else:
            if _note(path, "take"):
                _owners.tell_if_alone(path)
        _made.add(place)

    return _without_descriptors(original, mkdir)


def _removed_by_any(original: Any) -> Any:
    def rmdir(path: Any, *args: Any, **kw: Any) -> None:
        place = _place(path)
        if _note(path, "is_left"):
            _note(path, "skip")  # it is the one that comes next
            forget(path)
            return
        try:
            original(path, *args, **kw)
        except FileNotFoundError:
            if place not in _made and not _note(path, "take_gone"):
                raise
        else:
            _note(path, "drop")
        forget(path)

    return _without_descriptors(original, rmdir)


def forget(path: Any) -> None:
    """Notes that this rank has removed a folder, and what is below."""
    place = _place(path)
    below = os.path.join(place, "")
    _made.difference_update(
        [each for each in _made if each == place or each.startswith(below)]
    )


def _note(path: Any, what: str) -> bool:
    """Lets the ranks of this host know; returns what they know."""
    if not (_owners.are_several() and _owners.leaves(path, sys._getframe(2))):
        return False
    _turns.wait()  # what the ranks before this one do comes first
    with _owners.owners() as owners:
        result = getattr(owners, what)(_owners.place_of(path))
        return result is None or bool(result)


def _without_descriptors(original: Any, ours: Any) -> Any:
    """Returns `ours`, but `original` for paths below an open folder."""

    @functools.wraps(original)
    def call(path: Any, *args: Any, **kw: Any) -> None:
        (ours if kw.get("dir_fd") is None else original)(path, *args, **kw)

    return call


def _place(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))
