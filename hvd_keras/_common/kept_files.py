"""A comparison leaves files as they were: what its script writes is undone.

Each process copies a file before the script changes it for the first time.
After each run hvdrun gives the copies back, and removes files that are new, so
that the next run finds what the first one found.

It sees what Python opens, removes and renames, and what h5py opens, `Model.
export` and `torch.save` write. Other files that libraries write by themselves
stay: TensorFlow's checkpoints and logs.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hvd_keras._common.replacements import replace
from hvd_keras._common.when_imported import call_when_imported

# A larger file is not copied; it is told, if it has changed.
MOST_BYTES = 4 << 30

_OURS = "hvd_flight_ hvd_records_ hvd-ray- hvd-run- hvd-turn- hvdrun-"
_OTHERS = (
    *("/dev/", "/proc/", "/sys/"),
    *(os.path.join(tempfile.gettempdir(), name) for name in _OURS.split()),
)

_folder: Path | None = None
_seen: set[str] = set()
_local = threading.local()


def begin(folder: Path) -> None:
    """Keeps files in `folder` from now on, before this process changes them."""
    global _folder
    folder.mkdir(exist_ok=True)
    _folder = folder
    sys.addaudithook(_hear)
    call_when_imported(
        {
            "h5py": lambda: replace(
                sys.modules["h5py"].File, "__init__", _before(_keep_opened)
            ),
            "torch": lambda: replace(
                sys.modules["torch"], "save", _before(_keep_saved)
            ),
        }
    )


def give_back(folder: Path) -> list[str]:
    """Undoes what the processes of a job have changed.

    Returns:
        What could not be undone, in words.
    """
    failed, folders, left = [], list[Path](), set[Path]()
    for note in folder.glob("*.json"):
        found = json.loads(note.read_text())
        note.unlink()
        path, copy = Path(found["path"]), note.with_suffix(".data")
        if found["kind"] == "folder":
            folders.append(path)
        elif found["kind"] == "new":
            with contextlib.suppress(OSError):
                path.unlink()
        elif _state_of(path) == found["state"]:
            copy.unlink(missing_ok=True)
        elif found["kind"] == "large":
            failed.append(f"{str(path)!r} has changed; it is too large to copy")
        else:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(copy, path)
                shutil.copystat(copy, path)
                copy.unlink()
            except OSError as error:  # such as a full disk
                left.add(copy)
                failed.append(
                    f"{str(path)!r} has changed, and its copy is "
                    f"{str(copy)!r}: {error}"
                )
    for copy in {*folder.glob("*.data")} - left:  # of a process killed there
        copy.unlink()
    for path in sorted(folders, reverse=True):  # what is inside comes first
        with contextlib.suppress(OSError):
            path.rmdir()  # if it is empty
    return failed


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR):
            _keep(path)
    elif event in ("os.remove", "os.mkdir"):
        if arguments[-1] == -1:  # not relative to another folder
            _keep(arguments[0], is_folder=event == "os.mkdir")
    elif event == "os.truncate":
        _keep(arguments[0])
    elif event == "os.rename":
        source, target, *folders = arguments
        if folders == [-1, -1]:
            _keep_moved(source, target)
    elif event == "shutil.rmtree":
        _keep_below(arguments[0])


def _before(keep: Callable[..., None]) -> Callable[[Any], Any]:
    """Returns what lets a function of a library run behind `keep`."""

    def around(original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kw: Any) -> Any:
            keep(*args, **kw)
            return original(*args, **kw)

        return call

    return around


def _keep_opened(
    _file: Any, name: Any, mode: str = "r", *_rest: Any, **_kw: Any
) -> None:
    if mode != "r":
        _keep(name)


def _keep_exported(_model: Any, filepath: Any, *_rest: Any, **_kw: Any) -> None:
    _keep_below(filepath)


def _keep_saved(_obj: Any, f: Any, *_rest: Any, **_kw: Any) -> None:
    _keep(f)


exporting = _before(_keep_exported)  # for `Model.export`


def _keep_moved(source: Any, target: Any) -> None:
    is_folder = os.path.isdir(source)
    _keep(source)
    _keep(target, is_folder=is_folder)
    for folder, folders, names in os.walk(source) if is_folder else ():
        there = os.path.join(target, os.path.relpath(folder, source))
        for name in names:
            _keep(os.path.join(folder, name))
            _keep(os.path.join(there, name))
        for name in folders:
            _keep(os.path.join(there, name), is_folder=True)


def _keep_below(top: Any) -> None:
    if not isinstance(top, str | os.PathLike):
        return
    for folder, _, names in os.walk(os.fsdecode(top)):
        for name in names:
            _keep(os.path.join(folder, name))


def _keep(path: Any, *, is_folder: bool = False) -> None:
    """Notes how a file is, unless a process has noted it."""
    if not isinstance(path, str | bytes | os.PathLike):
        return  # a descriptor
    if _folder is None or getattr(_local, "is_busy", False):
        return
    _local.is_busy = True
    try:
        real = os.path.realpath(os.fsdecode(path))
        # Caches, devices, locks and our records are no work of the script.
        if (
            real in _seen
            or "/." in real
            or real.startswith((*_OTHERS, f"{_folder.parent}/"))
            or real.endswith((".lock", ".pyc"))
        ):
            return
        _seen.add(real)
        with _noting(real) as note:
            if note is not None:
                text = json.dumps(_kept(real, note, is_folder))
                whole = note.with_suffix(".part")  # we may be killed here
                whole.write_text(text)
                os.replace(whole, note)
    finally:
        _local.is_busy = False


@contextlib.contextmanager
def _noting(path: str) -> Iterator[Path | None]:
    """Yields where to note a file; None: another process has done so."""
    assert _folder is not None
    name = hashlib.sha256(path.encode()).hexdigest()[:24]
    note = _folder / f"{name}.json"
    with open(_folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield None if note.exists() else note


def _kept(path: str, note: Path, is_folder: bool) -> dict[str, Any]:
    if not os.path.lexists(path):
        return {"path": path, "kind": "folder" if is_folder else "new"}
    state = _state_of(Path(path))
    if not os.path.isfile(path) or state is None or state[0] > MOST_BYTES:
        return {"path": path, "kind": "large", "state": state}
    shutil.copy2(path, note.with_suffix(".data"))
    return {"path": path, "kind": "file", "state": state}


def _state_of(path: Path) -> list[int] | None:
    """Returns what changes with a file; None if it is none."""
    with contextlib.suppress(OSError):
        if path.is_file():
            stat = path.stat()
            times = [stat.st_mtime_ns, stat.st_ctime_ns]
            return [stat.st_size, stat.st_ino, *times]
    return None
