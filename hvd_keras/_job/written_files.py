"""Notices files that the script of this rank opens to write in them.

Only the launcher can tell which of them several ranks have written.
"""

from __future__ import annotations

import collections
import contextlib
import datetime
import functools
import inspect
import json
import os
import re
import socket
import sys
import time
import zlib
from typing import Any

from hvd_keras._common import files, paths, remarks, user_code
from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.kept_files import paths_in
from hvd_keras._common.replacement_table import WRITTEN_FILES
from hvd_keras._common.replacements import replace_calls
from hvd_keras._common.when_imported import call_when_imported

# What Keras writes on one rank, and what writes files with names of its own.
_BY_TIME_ALONE = ("File.__init__", "summary.create_file_writer")
_MOST = 8  # told by a rank
# By path: the line that opened it first; the path without the time of then.
_places: dict[str, tuple[str, str]] = {}
# By path: the line that opened it first to append, its bytes then, and whether
# something was written in it since this process began.
_appended: dict[str, tuple[str, int, bool]] = {}
_begun = time.time()
_MOST_APPENDED = 1 << 20  # bytes that are looked at
_hears = False
_is_on = False
_has_clocks_alone = False
_THIS_YEAR = datetime.date.today().year
# Seconds since 1970, or a date and a time of day, or the time of day alone.
_CLOCK = re.compile(
    r"(?P<seconds>\d{10})(\d{3,9}|\.\d+)?"
    rf"|({_THIS_YEAR - 1}|{_THIS_YEAR}|{_THIS_YEAR + 1})"
    r"[-_.]?\d\d[-_.]?\d\d[-_T ]?\d\d[-_.:]?\d\d([-_.:]?\d\d([-_.:]?\d+)?)?"
    r"|(?<!\d)(?P<time>[012]\d[-_.:]?[0-5]\d[-_.:]?[0-5]\d)"
    r"([-_.:]?\d{3,9})?(?!\d)"
)
_DAY_SECONDS = 86400
# Of the system, or in the memory of one process.
_OWN = ("/dev/", "/proc/", "ram://")
_MOST_SECONDS_AGO = 60  # an older time of day may be any number


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
        call_when_imported(
            {
                package: functools.partial(
                    replace_calls, package, WRITTEN_FILES.items(), _noting
                )
                for package in ("h5py", "tensorflow", "torch")
            }
        )


def _noting(place: str, original: Any) -> Any:
    """Returns a call of a library that opens files by itself."""
    signature = inspect.signature(original)
    opens = place.endswith("File.__init__")

    @as_it_is
    @functools.wraps(original)
    def call(*args: Any, **kw: Any) -> Any:
        with contextlib.suppress(TypeError):  # `original` tells what is wrong
            given = signature.bind(*args, **kw).arguments
            reads = opens and given.get("mode", "r") in ("r", "rb")
            for path in paths_in(given) if _is_on and not reads else ():
                _note(
                    path,
                    by_time_alone=_has_clocks_alone or place in _BY_TIME_ALONE,
                )
        return original(*args, **kw)

    return call


def tell() -> None:
    """Keeps a remark on each for the end of the job."""
    host = socket.gethostname()
    for path, (place, timeless) in _places.items():
        about, value = path, ""
        text = (
            f"Each has written {_shown(path)!r} at {place}: one overwrites "
            "what another has written, or both mix. Write it on one rank, "
            "under `if hvd.rank() == 0:`."
        )
        if timeless != path:
            # Of a folder with the time in its name, one remark is enough.
            about, folder = _up_to_clock(timeless, path)
            shown = f"{_shown(folder)!r}"
            text = (
                f"Each has written {_shown(path)!r} at {place}, or the same "
                "with another time in its name: the ranks read their clocks "
                "one after the other. Leave the time out, or make the name on "
                "one rank for all: `name = hvd.broadcast_object(name)`."
            )
            if _has_clocks_alone:  # of one name, one file is written
                value = json.dumps([f"{zlib.crc32(folder.encode())} {shown}"])
                text = (
                    f"Ranks have written at {place} with another time in the "
                    "name, as they read their clocks one after the other. "
                    "Leave the time out, or take it from the environment, as "
                    "by `RUN=$(date +%s) hvdrun ...`. Received"
                )
        remarks.keep(text, f"file {host}:{about}", fewest=2, value=value)
    for path, (place, size, is_late) in _appended.items():
        text = (
            f"Each has appended to {_shown(path)!r} at {place}, and its "
            "lines are there more than once. Write it on one rank, under "
            "`if hvd.rank() == 0:`."
        )
        # The last rank to end may be the only one that sees it.
        has_copies = _has_copies(path, size, is_late)
        remarks.keep(
            text if has_copies else "", f"file {host}:{path}", fewest=2
        )


def _up_to_clock(timeless: str, path: str) -> tuple[str, str]:
    """Returns both up to the first part in whose name the time is."""
    parts = timeless.split(os.sep), path.split(os.sep)
    count = next(
        (n for n, (a, b) in enumerate(zip(*parts, strict=False), 1) if a != b),
        len(parts[0]),
    )
    shorter, folder = (os.sep.join(each[:count]) for each in parts)
    return shorter, folder


def _shown(path: str) -> str:
    near = path if paths.is_remote(path) else os.path.relpath(path)
    return path if near.startswith("..") else near


def _has_copies(path: str, size: int, is_late: bool) -> bool:
    """Whether most of what was appended to a file is there more than once."""
    try:
        appended = min(os.path.getsize(path) - size, _MOST_APPENDED)
        with open(path, "rb") as file:
            # Another rank may have written as much before.
            back = min(size, appended) if is_late else 0
            file.seek(size - back)
            lines = [*filter(None, file.read(back + appended).splitlines())]
    except (OSError, ValueError):
        return False
    copied = [num for num in collections.Counter(lines).values() if num > 1]
    return bool(copied) and 2 * sum(copied) >= len(lines)


def _without_clock(path: str) -> str:
    """Returns the path without what looks like the time of now."""
    now = time.time()

    def replaced(found: re.Match[str]) -> str:
        seconds, clock = found["seconds"], found["time"]
        is_now = True
        if clock is not None:
            is_now = _is_time_of_now(re.sub(r"\D", "", clock), now)
        elif seconds is not None:
            is_now = abs(int(seconds) - now) < _DAY_SECONDS
        return "(time)" if is_now else found[0]

    return _CLOCK.sub(replaced, path)


def _is_time_of_now(digits: str, now: float) -> bool:
    hours, minutes, seconds = (int(digits[i : i + 2]) for i in (0, 2, 4))
    at = 3600 * hours + 60 * minutes + seconds
    for day in time.localtime(now), time.gmtime(now):
        here = 3600 * day.tm_hour + 60 * day.tm_min + day.tm_sec
        if (here - at) % _DAY_SECONDS <= _MOST_SECONDS_AGO:
            return True
    return False


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _is_on or len(_places) == _MOST:
        return
    path, mode, _ = arguments
    if not (isinstance(mode, str) and isinstance(path, str | os.PathLike)):
        return
    # "x" fails where another rank was first, as it should; "a" loses nothing.
    if "w" in mode:
        _note(os.fsdecode(path), by_time_alone=_has_clocks_alone)
    elif "a" in mode:
        _note_appended(os.path.realpath(os.fsdecode(path)))


def _note_appended(path: str) -> None:
    if path in _appended or len(_appended) == _MOST or "/." in path:
        return
    if not path.startswith(_OWN) and (place := user_code.place()):
        with contextlib.suppress(OSError):
            _appended[path] = place, 0, False
            now = os.stat(path)
            _appended[path] = place, now.st_size, now.st_mtime >= _begun


def _note(path: str, *, by_time_alone: bool) -> None:
    full = paths.real_path(path)
    # We let one rank write what all save under the same name.
    saved = files.replaced_by(full) or full
    timeless = _without_clock(saved)
    if timeless != saved:
        full = saved
    elif by_time_alone:
        return
    else:
        timeless = full
    # Caches, devices and locks are no work of the script; a file without a
    # name has that of its folder.
    if (
        full in _places
        or len(_places) == _MOST
        or "/." in full
        or full.startswith(_OWN)
        or full.endswith(".lock")
        or (timeless == full and os.path.isdir(full))
    ):
        return
    place = user_code.place()
    if place:
        _places[full] = place, timeless
