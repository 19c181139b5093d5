"""What a script does with its files by itself: one rank does it.

The first rank of a host that writes in a file has it. What another one writes
there goes nowhere: all have the same text, and one copy of it is there. What
one rank has removed is removed for all, and stays if it has been made anew.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import io
import os
import shutil
import sys
import time
from typing import Any

from hvd_keras._common import log
from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.replacements import replace
from hvd_keras.distribution import _folders, _owners, _turns

_told: set[str] = set()
_MOST_TOLD = 8
_SECONDS = 0.01
_patience = 5.0  # seconds in all that this rank waits for the first one
_made: set[str] = set()  # files that this rank believes to have made
_copies: dict[str, str] = {}  # of files of other ranks, which this one wrote


def share() -> None:
    """Lets one rank of each host do what the script does with its files."""
    if not _owners.are_several():
        return
    for module in (builtins, io):
        replace(module, "open", _written_once)
    for name in ("remove", "unlink"):
        replace(os, name, _removed_once)
    replace(shutil, "rmtree", _removed_once)
    for name in ("rename", "replace"):
        replace(os, name, _moved_once)
    replace(shutil, "move", _moved_once)
    for name in ("symlink", "link"):
        replace(os, name, _linked_once)
    # Before what the script registers, so it runs behind that.
    atexit.register(_end)


def _written_once(original: Any) -> Any:
    @as_it_is
    @functools.wraps(original)
    def open_file(file: Any, mode: Any = "r", *args: Any, **kw: Any) -> Any:
        # What a mode such as "r+" leaves is no text of the script alone.
        is_known = isinstance(mode, str) and not (
            "+" in mode and {*"ra"} & {*mode}
        )
        writes = is_known and not {*"wxa"}.isdisjoint(mode)
        if not (writes or (is_known and _copies)) or not _owners.leaves(
            file, sys._getframe(1)
        ):
            return original(file, mode, *args, **kw)
        place = _owners.place_of(file)
        if not writes:
            # What it has just written, while others may still write.
            copy = _copies.get(place) if _turns.is_in_call() else None
            return original(copy or file, mode, *args, **kw)
        if os.path.exists(place) and not os.path.isfile(place):
            return original(file, mode, *args, **kw)
        _await_first(place)
        with _owners.in_turn() as owners:
            # Before ranks have turns, the first one cannot know of others.
            is_first = _is_first() and not _turns.have_begun()
            if owners.is_left(place) and not is_first:
                if "x" in mode and place in _made:
                    return original(file, mode, *args, **kw)  # it is there
                _made.add(place)
                copy = _copy_of(place, mode)
                return original(copy, mode.replace("x", "w"), *args, **kw)
            is_new = not os.path.lexists(place)
            made = original(file, mode, *args, **kw)
            owners.take(place)
            _made.add(place)
        if is_new:
            _owners.tell_if_alone(file)
        _tell_of(os.fsdecode(file))
        return made

    return open_file


def _copy_of(place: str, mode: str) -> str:
    """Returns where a rank writes what is in a file of another rank.

    In a call that ranks share, they do not wait for each other: who writes a
    file whole may read it at once, and gets its own. So does who reads it by
    the same `open`, as archives of zip and NumPy do.
    """
    if not _turns.is_in_call() and "+" not in mode:
        return os.devnull
    if "a" not in mode and place not in _copies:
        _copies[place] = f"{_turns.of_host()}-copy-{os.getpid()}-{len(_copies)}"
    return _copies.get(place, os.devnull)


def _end() -> None:
    for copy in _copies.values():
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy)
    _owners.end()


def _is_first() -> bool:
    return os.environ["HVD_LOCAL_RANK"] == "0"


def _await_first(place: str) -> None:
    """Lets the first rank of this host have a file, if it comes soon.

    Where ranks have no turns, any one may be there first.
    """
    global _patience
    if _turns.are_kept() or _is_first():
        return
    while _patience > 0:
        with _owners.owners() as owners:
            if owners.has(place):
                return
        time.sleep(_SECONDS)
        _patience -= _SECONDS


def _removed_once(original: Any) -> Any:
    @functools.wraps(original)
    def remove(path: Any, *args: Any, **kw: Any) -> Any:
        is_whole = kw.get("dir_fd") is None
        if not (is_whole and _owners.leaves(path, sys._getframe(1))):
            return original(path, *args, **kw)
        place = _owners.place_of(path)
        with _owners.in_turn() as owners:
            _made.discard(place)
            _folders.forget(path)
            if owners.is_left(place):  # it is the one that comes next
                owners.skip(place)
                return None
            try:
                result = original(path, *args, **kw)
            except FileNotFoundError:
                if not owners.take_gone(place):
                    raise
                return None
            owners.drop(place)
        return result

    return remove


def _moved_once(original: Any) -> Any:
    @functools.wraps(original)
    def move(src: Any, dst: Any, *args: Any, **kw: Any) -> Any:
        is_whole = kw.keys().isdisjoint(("src_dir_fd", "dst_dir_fd"))
        if not (is_whole and _owners.leaves(src, sys._getframe(1))):
            return original(src, dst, *args, **kw)
        place = _owners.place_of(src)
        with _owners.in_turn() as owners:
            _made.discard(place)
            _folders.forget(src)
            if owners.is_left(place):
                owners.skip(place)
                return dst
            try:
                result = original(src, dst, *args, **kw)
            except FileNotFoundError:
                if not owners.take_gone(place):
                    raise
                return dst
            owners.drop(place)
            owners.take(_owners.place_of(dst if result is None else result))
        return result

    return move


def _linked_once(original: Any) -> Any:
    @functools.wraps(original)
    def link(src: Any, dst: Any, *args: Any, **kw: Any) -> Any:
        is_whole = kw.keys().isdisjoint(("dir_fd", "src_dir_fd", "dst_dir_fd"))
        if not (is_whole and _owners.leaves(dst, sys._getframe(1))):
            return original(src, dst, *args, **kw)
        place = _owners.place_of(dst)
        with _owners.in_turn() as owners:
            # What this rank has made itself is there.
            if place in _made or not owners.is_left(place):
                original(src, dst, *args, **kw)
                owners.take(place)
            _made.add(place)
        return None

    return link


def _tell_of(name: str) -> None:
    """Says of the first files that each host writes them."""
    num_hosts = int(os.environ.get("HVD_CROSS_SIZE", "1"))
    is_first = os.environ["HVD_RANK"] == "0" and len(_told) < _MOST_TOLD
    if num_hosts == 1 or name in _told or not (is_first and log.is_shown()):
        return
    _told.add(name)
    log.info(
        f"{name!r}: one rank of each of {num_hosts} hosts writes this file of "
        f"{sys.argv[0]}. For one copy where hosts share it, write it where "
        '`os.environ.get("HVD_RANK", "0") == "0"`.'
    )
