"""Notices files that the script of this rank opens to write in them.

Only the launcher can tell which of them several ranks have written.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from hvd_keras._common import remarks, user_code

_MOST = 8  # told by a rank
_places: dict[str, str] = {}  # by path: the line that opened it first
_hears = False
_is_on = False


def watch() -> None:
    """Notices them from now on."""
    global _hears, _is_on
    _is_on = True
    if not _hears:  # nobody can take a hook back
        _hears = True
        sys.addaudithook(_hear)


def forget() -> None:
    """Ends that: somebody else tells of them."""
    global _is_on
    _is_on = False
    _places.clear()


def tell() -> None:
    """Keeps a remark on each for the end of the job."""
    host = socket.gethostname()
    for path, place in _places.items():
        near = os.path.relpath(path)
        shown = path if near.startswith("..") else near
        text = (
            f"Each has written {shown!r} at {place}: one overwrites what "
            "another has written, or both mix. Write it on one rank, under "
            "`if hvd.rank() == 0:`."
        )
        remarks.keep(text, f"file {host}:{path}", fewest=2)


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
