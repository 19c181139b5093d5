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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hvd_keras._common.replacements import replace
from hvd_keras._common.when_imported import call_when_imported

# A larger file is not copied; it is told, if it has changed.
MOST_BYTES = 4 << 30

_OTHERS = ("/dev/", "/proc/", "/sys/", f"{tempfile.gettempdir()}/hvd")

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
                sys.modules["h5py"].File, "__init__", _opening
            ),
            "torch": lambda: replace(sys.modules["torch"], "save", _saving),
        }
    )


def give_back(folder: Path) -> list[str]:
    """Undoes what the processes of a job have changed.

    Returns:
        Paths of files that have changed and are too large to be kept.
    """
    lost, folders = [], []
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
            lost.append(str(path))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            near = path.with_name(f".{path.name}.{os.getpid()}")
            shutil.move(copy, near)
            os.replace(near, path)
    for path in sorted(folders, reverse=True):  # what is inside comes first
        with contextlib.suppress(OSError):
            path.rmdir()  # if it is empty
    return lost


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
        _keep(arguments[0])
        _keep(arguments[1])
    elif event == "shutil.rmtree":
        _keep_below(arguments[0])


def _opening(original: Any) -> Any:
    @functools.wraps(original)
    def opened(
        self: Any, name: Any, mode: str = "r", *rest: Any, **kw: Any
    ) -> Any:
        if mode != "r":
            _keep(name)
        return original(self, name, mode, *rest, **kw)

    return opened


def exporting(original: Any) -> Any:
    """Keeps the folder that `Model.export` writes."""

    @functools.wraps(original)
    def export(self: Any, filepath: Any, *rest: Any, **kw: Any) -> Any:
        _keep_below(filepath)
        return original(self, filepath, *rest, **kw)

    return export


def _saving(original: Any) -> Any:
    @functools.wraps(original)
    def save(obj: Any, f: Any, *rest: Any, **kw: Any) -> Any:
        _keep(f)
        return original(obj, f, *rest, **kw)

    return save


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
                note.write_text(json.dumps(_kept(real, note, is_folder)))
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
