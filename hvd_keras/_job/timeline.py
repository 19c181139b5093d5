"""The timeline of this rank: a file of every collective and every step."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import sys
import time
from typing import Any

from hvd_keras import _native
from hvd_keras._common import log, owners
from hvd_keras._common.version import package_version, versions
from hvd_keras._job import membership, state
from hvd_keras._records import files
from hvd_keras._rendezvous import Topology, interfaces
from hvd_keras.config import Config, settings
from hvd_keras.exceptions import InvalidArgumentError

# The value of HOROVOD_TIMELINE with which `start_timeline` decides.
_LATER = "DYNAMIC"
_path = ""  # of the file that is being recorded
# They say where a rank is, not how it works.
_PLACES = (
    "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size",
    "rendezvous", "timeline", "timeline_mark_cycles",
)  # fmt: skip


def begin(topology: Topology, config: Config) -> None:
    """Begins to record if the settings say so. A bad folder is a warning."""
    folder = config.timeline
    if folder is None or folder.upper() == _LATER:
        return
    try:
        start(topology, config, folder, config.timeline_mark_cycles)
    except Exception as error:
        log.warning(f"HVD_TIMELINE cannot be used: {error}")


def start(
    topology: Topology, config: Config, folder: str, mark_cycles: bool
) -> None:
    """Begins to record into a file in `folder`, which is made if needed.

    Raises:
        FileInUseError: Another job records into the file.
        InvalidArgumentError: A timeline is being recorded, or the file cannot
            be written.
        OSError: The folder cannot be made.
    """
    # Each membership has files of its own.
    if topology.member is not None and membership.is_waiting():
        folder = files.folder_of_member(folder, topology.member)
    else:
        folder = files.folder_of_epoch(folder, state.generation())
    os.makedirs(folder, exist_ok=True)
    name = files.file_name(topology.rank)
    path = os.path.join(os.path.realpath(folder), name)
    if is_on():
        raise InvalidArgumentError("A timeline is being recorded already.")
    try:
        owners.claim(path, tell=log.info)
    except OSError as error:
        if not owners.is_full(error):  # else `stop` tells what is missing
            raise
    try:
        # A job that has lost the file to this one writes the old one on.
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
        _native.core().start_timeline(
            path, json.dumps(_header(topology, config, mark_cycles))
        )
    except BaseException:
        owners.release(path)
        raise
    global _path
    _path = path


def stop(reads_clock: bool = True) -> None:
    """Completes the file. Without a timeline this does nothing.

    A file that is not complete is a warning: training is worth more.

    Args:
        reads_clock: Whether to compare the clock with host 0's once more.
    """
    global _path
    path, _path = _path, ""
    try:
        _native.core().stop_timeline(reads_clock)
    except Exception as error:
        with contextlib.suppress(Exception):
            log.notice(f"{path!r} is not complete: {error}")
    if path:
        owners.release(path)


def is_on() -> bool:
    """Whether a timeline is being recorded."""
    return state.job() is not None and bool(_native.core().timeline_is_on())


def add_step(step: int, epoch: int, begin_ns: int, end_ns: int) -> None:
    """Adds a step of training, if a timeline is being recorded.

    Args:
        step: Its number in its `fit`, from 1 on.
        epoch: The epoch that it is of.
        begin_ns: When it began, as `time.monotonic_ns()` tells.
        end_ns: When it ended.
    """
    _native.core().add_step_to_timeline(step, epoch, begin_ns, end_ns)


def _header(
    topology: Topology, config: Config, mark_cycles: bool
) -> dict[str, Any]:
    return {
        "version": files.VERSION,
        "rank": topology.rank,
        "size": topology.size,
        "host": config.hostname or interfaces.host_name(),
        "pid": os.getpid(),
        "clock": _clock(),
        "monotonic_ns": time.monotonic_ns(),
        "unix_ns": time.time_ns(),
        "command": shlex.join(sys.orig_argv)[:2000],
        "settings": _settings(config, mark_cycles),
    }


def _clock() -> str:
    """Names the monotonic clock of this process.

    Processes with equal names read the same clock.
    """
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        name = file.read().strip()
    with contextlib.suppress(OSError):  # kernels before 5.6
        name += " " + os.readlink("/proc/self/ns/time")
    return name


def _settings(config: Config, mark_cycles: bool) -> dict[str, str]:
    """Everything that may explain what is seen."""
    found = {
        "hvd_keras": package_version(),
        "Python": platform.python_version(),
        "cores": str(len(os.sched_getaffinity(0))),
        "CPU": _cpu_model(),
        "kernel": platform.release(),
    }
    for library, known in versions().items():
        if "loaded" in known:
            found[library] = known["loaded"]
    keras = sys.modules.get("keras")
    backend = keras and keras.backend.backend()
    found["backend"] = backend or os.environ.get("KERAS_BACKEND", "unknown")
    for row in settings():
        value = getattr(config, row.field)
        if row.secret or row.field in _PLACES or value == row.default:
            continue
        found[row.name] = str(value)
    if mark_cycles:
        found["mark_cycles"] = "1"
    return found


def _cpu_model() -> str:
    with (
        contextlib.suppress(OSError),
        open("/proc/cpuinfo", encoding="utf-8") as file,
    ):
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.machine()
