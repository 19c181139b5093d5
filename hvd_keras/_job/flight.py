"""The flight record: what became of this rank's last collectives."""

from __future__ import annotations

import _thread
import contextlib
import faulthandler
import json
import os
import signal
import socket
import traceback
from typing import IO

from hvd_keras import _native
from hvd_keras._common import files, log, user_code
from hvd_keras._records import evidence
from hvd_keras._records.evidence import Part
from hvd_keras._rendezvous import Topology, interfaces
from hvd_keras.config import Config

_stacks: IO[str] | None = None  # open, for the handler of the signal
_requests: socket.socket | None = None  # for the native thread that asks
_error_path = ""  # where the exception goes that ends this process


def begin(topology: Topology, config: Config) -> None:
    """Says where the records of this rank go, if there is a folder for them.

    From then on SIGUSR2 has the record and the stacks of all threads written.
    """
    folder = config.flight_record_dir
    host = config.hostname or interfaces.host_name()
    paths: dict[Part, str] = {}
    if folder is not None:
        try:
            paths = _prepare(folder, topology, host)
        except OSError as error:
            log.warning(f"HVD_FLIGHT_RECORD_DIR cannot be used: {error}")
    # The native handler comes first: it stays when Python has ended.
    _native.core().set_flight_file(
        rank=topology.rank,
        size=topology.size,
        host=host,
        path=paths.get(Part.FLIGHT, ""),
    )
    if paths:
        _write_stacks_to(paths[Part.STACKS])
    global _error_path
    _error_path = paths.get(Part.ERROR, "")


def _prepare(folder: str, topology: Topology, host: str) -> dict[Part, str]:
    """Removes what an earlier job has left, and says who this rank is."""
    os.makedirs(folder, exist_ok=True)
    folder = os.path.realpath(folder)
    paths = {
        part: os.path.join(folder, part.name_for(topology.rank))
        for part in Part
    }
    if evidence.process_of(paths[Part.IDENTITY]) != os.getpid():
        for path in paths.values():
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)
    said = {
        "rank": topology.rank,
        "size": topology.size,
        "host": host,
        "pid": os.getpid(),
        "foreign": user_code.foreign_folders(),
    }
    files.write(paths[Part.IDENTITY], json.dumps(said).encode())
    return paths


def _write_stacks_to(path: str) -> None:
    global _stacks
    # A handler of the user stays.
    if signal.getsignal(signal.SIGUSR2) not in (signal.SIG_DFL, None):
        return
    try:
        stacks = open(path, "w", encoding="utf-8")  # noqa: SIM115
    except OSError as error:
        log.warning(f"Stacks cannot be written: {error}")
        return
    faulthandler.register(signal.SIGUSR2, stacks, all_threads=True)
    if _stacks is not None or not faulthandler.is_enabled():
        faulthandler.enable(stacks)  # the user has no other plan
    if _stacks is not None:
        _stacks.close()
    _stacks = stacks
    _answer_requests()


def _answer_requests() -> None:
    """Has the stacks written by a thread, which holds the GIL.

    The handler of `faulthandler` reads the frames of other threads while they
    run, and crashes when one goes away: it is for a process that hangs.
    """
    global _requests
    if _requests is None:
        _requests, ours = socket.socketpair()
        # Programs join all that `threading` knows.
        _thread.start_new_thread(_serve, (ours,))
    _native.core().set_stack_writer(_requests.fileno())


def _serve(requests: socket.socket) -> None:
    while requests.recv(1):
        if _stacks is not None:
            # A new start may have closed it just now.
            with contextlib.suppress(ValueError):
                faulthandler.dump_traceback(_stacks, all_threads=True)
        requests.send(b"\0")


def write(reason: str, path: str = "") -> None:
    """Writes the record now.

    Args:
        reason: Why, for who reads it.
        path: Where to; empty: into the folder for them, if there is one.

    Raises:
        InternalError: It cannot be written.
    """
    _native.core().write_flight_record(path, reason)


def write_after_failure(
    reason: str, error: BaseException | None = None
) -> None:
    """As `write`, but what fails here hides no earlier error.

    Args:
        reason: Why, for who reads it.
        error: The exception that ends this process; its stack is written too.
    """
    with contextlib.suppress(Exception):
        if error is not None and _error_path:
            text = "".join(traceback.format_exception(error))
            files.write(_error_path, text.encode())
        write(reason)
