"""Notices files that the script of this rank opens to write in them.

Only the launcher can tell which of them several ranks have written.
"""

from __future__ import annotations

import datetime
import os
import re
import socket
import sys
import time
from typing import Any

from hvd_keras._common import files, remarks, user_code

_MOST = 8  # told by a rank
_places: dict[str, str] = {}  # by path: the line that opened it first
_hears = False
_is_on = False
_has_clocks_alone = False
# Seconds since 1970, or a date and a time of day.
_CLOCK = re.compile(
    r"(?P<seconds>\d{10})(\d{3,9}|\.\d+)?"
    r"|(?P<year>\d{4})[-_.]?\d\d[-_.]?\d\d[-_T ]?\d\d[-_.:]?\d\d"
    r"([-_.:]?\d\d([-_.:]?\d+)?)?"
)
_DAY_SECONDS = 86400


def watch(*, clocks_alone: bool = False) -> None:
    """Notices them from now on.

    Args:
        clocks_alone: Somebody else tells of files with the same name on all
            ranks. Only those that are named by the time count.
    """
    global _hears, _is_on, _has_clocks_alone
    _is_on, _has_clocks_alone = True, clocks_alone
    if clocks_alone:
        _places.clear()
    if not _hears:  # nobody can take a hook back
        _hears = True
        sys.addaudithook(_hear)


def tell() -> None:
    """Keeps a remark on each for the end of the job."""
    host = socket.gethostname()
    for path, place in _places.items():
        near = os.path.relpath(path)
        shown = path if near.startswith("..") else near
        about, text = (
            path,
            (
                f"Each has written {shown!r} at {place}: one overwrites what "
                "another has written, or both mix. Write it on one rank, under "
                "`if hvd.rank() == 0:`."
            ),
        )
        if (timeless := _without_clock(path)) != path:
            about, text = (
                timeless,
                (
                    f"Each has written {shown!r} at {place}, or the same with "
                    "another time in its name: the ranks read their clocks one "
                    "after the other. Leave the time out, or make the name on "
                    "one rank for all: `name = hvd.broadcast_object(name)`."
                ),
            )
        remarks.keep(text, f"file {host}:{about}", fewest=2)


def _without_clock(path: str) -> str:
    """Returns the path without what looks like the time of now."""
    now = time.time()

    def replaced(found: re.Match[str]) -> str:
        seconds, year = found["seconds"], found["year"]
        if seconds is not None:
            is_now = abs(int(seconds) - now) < _DAY_SECONDS
        else:
            is_now = abs(int(year) - datetime.date.today().year) <= 1
        return "(time)" if is_now else found[0]

    return _CLOCK.sub(replaced, path)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _is_on or len(_places) == _MOST:
        return
    path, mode, _ = arguments
    # Mode "x" fails where another rank was first, as it should.
    if not isinstance(mode, str) or not ("w" in mode or "a" in mode):
        return
    if not isinstance(path, str | os.PathLike):
        return
    full = os.path.realpath(os.fsdecode(path))
    # We let one rank write what all save under the same name.
    saved = files.replaced_by(full)
    if saved and _without_clock(saved) != saved:
        full = saved
    if _has_clocks_alone and _without_clock(full) == full:
        return
    # Caches, devices and locks are no work of the script; a file without a
    # name has that of its folder.
    if (
        full in _places
        or "/." in full
        or full.startswith(("/dev/", "/proc/"))
        or full.endswith(".lock")
        or os.path.isdir(full)
    ):
        return
    place = user_code.place()
    if place:
        _places[full] = place
