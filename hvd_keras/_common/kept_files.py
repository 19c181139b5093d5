"""A comparison leaves files as they were: what its script writes is undone.

Each process copies a file before the script changes it for the first time.
After each run hvdrun gives the copies back, and removes files that are new, so
that the next run finds what the first one found.

It sees what Python opens, removes and renames, and the calls in `WRITE_FILES`
of libraries that write files by themselves.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import inspect
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.replacement_table import WRITE_FILES
from hvd_keras._common.replacements import replace_calls
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
    packages = {path.partition(".")[0] for path in WRITE_FILES}
    call_when_imported(
        {
            package: functools.partial(
                replace_calls, package, WRITE_FILES.items(), _before
            )
            for package in packages
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
        elif found["kind"] == "tree":
            files, below = _tree(path, found["prefix"])
            for file in files - {*found["files"]}:
                with contextlib.suppress(OSError):
                    os.unlink(file)
            folders += map(Path, below - {*found["folders"]})
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


def _before(place: str, original: Any) -> Any:
    """Returns a function of a library that first keeps what it will change."""
    keep = _WRITERS.get(place, _keep_given)
    signature = inspect.signature(original)

    @as_it_is
    @functools.wraps(original)
    def call(*args: Any, **kw: Any) -> Any:
        with contextlib.suppress(TypeError):  # `original` tells what is wrong
            keep(signature.bind(*args, **kw).arguments)
        return original(*args, **kw)

    return call


def paths_in(given: dict[str, Any]) -> list[str]:
    """Returns the files and folders that a call in `WRITE_FILES` names."""
    if "file_prefix" in given or hasattr(given.get("self"), "directory"):
        return [_prefix_in(given)]
    named = [given[name] for name in _NAMES if name in given]
    return [os.fsdecode(a) for a in named if isinstance(a, str | os.PathLike)]


def _keep_given(given: dict[str, Any]) -> None:
    for path in paths_in(given):
        _keep(path)


def _keep_opened(given: dict[str, Any]) -> None:
    if given.get("mode", "r") not in ("r", "rb"):
        _keep_given(given)


def _keep_made(given: dict[str, Any]) -> None:
    for path in paths_in(given):
        folder = os.path.abspath(path)
        while not os.path.exists(folder):
            _keep(folder, is_folder=True)
            folder = os.path.dirname(folder)


def _keep_tree(given: dict[str, Any], prefix: str = "") -> None:
    """Keeps what is in a folder, and notes what is not."""
    _keep_made(given)
    for path in paths_in(given):
        _keep_below(path, prefix)


def _keep_checkpoint(given: dict[str, Any]) -> None:
    folder, prefix = os.path.split(_prefix_in(given))
    _keep_below(folder, prefix)
    _keep(os.path.join(folder, "checkpoint"))


def _prefix_in(given: dict[str, Any]) -> str:
    """Returns what the paths of a checkpoint's files begin with."""
    manager, path = given["self"], given.get("file_prefix", "")
    if hasattr(manager, "directory"):
        name = getattr(manager, "_checkpoint_prefix", "ckpt")
        path = os.path.join(manager.directory, os.path.basename(name))
    return os.path.abspath(path)


exporting = functools.partial(_before, "Model.export")
# What the arguments are called that name files or folders.
_NAMES = "dst export_dir f filename filepath logdir name path src".split()
# What others than `_keep_given` see to.
_WRITERS: dict[str, Callable[[dict[str, Any]], None]] = {
    "io.gfile.GFile.__init__": _keep_opened,
    "io.gfile.makedirs": _keep_made,
    "io.gfile.mkdir": _keep_made,
    "io.gfile.rmtree": _keep_tree,
    "saved_model.save": _keep_tree,
    "data.Dataset.save": _keep_tree,
    "train.Checkpoint.save": _keep_checkpoint,
    "train.Checkpoint.write": _keep_checkpoint,
    "train.CheckpointManager.save": _keep_checkpoint,
    "summary.create_file_writer": functools.partial(
        _keep_tree, prefix="events.out.tfevents"
    ),
    "File.__init__": _keep_opened,
    "Model.export": _keep_tree,
}


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


def _keep_below(top: Any, prefix: str = "") -> None:
    """Keeps the files in a folder, and notes which there are.

    Args:
        top: The folder, if it is one.
        prefix: If there is one, what the names of files right in it begin with;
            else the folder is the script's own.
    """
    if not isinstance(top, str | os.PathLike):
        return
    folder = os.path.realpath(os.fsdecode(top))
    if not prefix and Path.cwd().is_relative_to(folder):
        return  # others work there
    files, folders = _tree(Path(folder), prefix)
    _note(
        folder,
        os.path.join(folder, f"{prefix}*"),
        lambda _: {
            "path": folder,
            "kind": "tree",
            "prefix": prefix,
            "files": sorted(files),
            "folders": sorted(folders),
        },
    )
    for file in files:
        _keep(file)


def _tree(top: Path, prefix: str) -> tuple[set[str], set[str]]:
    """Returns the files and the folders that are in a folder, or it itself."""
    files, folders = set[str](), set[str]()
    for folder, _, names in os.walk(top):
        folders.add(folder)
        files |= {
            os.path.join(folder, name)
            for name in names
            if name.startswith(prefix)
        }
        if prefix:
            break
    return files, folders


def _keep(path: Any, *, is_folder: bool = False) -> None:
    """Notes how a file is, unless a process has noted it."""
    if isinstance(path, str | bytes | os.PathLike):  # else a descriptor
        real = os.path.realpath(os.fsdecode(path))
        _note(real, real, functools.partial(_kept, real, is_folder))


def _note(path: str, key: str, make: Callable[[Path], dict[str, Any]]) -> None:
    """Writes a note, unless a process has done so.

    Args:
        path: What it is of.
        key: What no other note has.
        make: Gets where the note will be, and returns it.
    """
    if _folder is None or getattr(_local, "is_busy", False):
        return
    _local.is_busy = True
    try:
        # Caches, devices, locks and our records are no work of the script.
        if (
            key in _seen
            or "/." in path
            or path.startswith((*_OTHERS, f"{_folder.parent}/"))
            or path.endswith((".lock", ".pyc"))
        ):
            return
        _seen.add(key)
        with _noting(key) as note:
            if note is not None:
                text = json.dumps(make(note))
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


def _kept(path: str, is_folder: bool, note: Path) -> dict[str, Any]:
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
