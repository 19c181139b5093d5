"""Joining a job and leaving it; who this process is in it."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import os
import threading

from hvd_keras import _bootstrap, _exit_hooks, _log, _native, _startup
from hvd_keras import config as config_module
from hvd_keras._bootstrap import Topology
from hvd_keras.config import Config
from hvd_keras.exceptions import NotInitializedError

_lock = threading.Lock()


@dataclasses.dataclass(frozen=True)
class _Job:
    topology: Topology
    config: Config
    pid: int


_job: _Job | None = None
_generation = 0  # how many times this process has tried to join


def init() -> None:
    """Joins the job that the launcher has started; a second call does nothing.

    Every rank calls this once before anything else. It reads the settings
    (`hvdrun --help-env`), finds out rank and size from the launcher's
    environment variables and waits for the other ranks. Without a launcher
    the job has one rank. Whoever leaves the job without `shutdown()` while
    others need it makes their calls fail.

    Raises:
        ConfigError: A setting is unknown or has a bad value.
        LaunchError: The launcher's description of the job cannot be used.
        MismatchError: The ranks differ in version or settings.
        PeerLostError: A rank died before all had joined.
        StalledError: A rank did not join within HVD_START_TIMEOUT.

    Example, without a launcher:

    >>> import hvd_keras as hvd
    >>> hvd.init()
    >>> hvd.rank(), hvd.size()
    (0, 1)
    """
    global _job, _generation
    with _lock:
        if _is_member():
            return
        config = Config.from_environ(os.environ)
        topology = _bootstrap.detect(os.environ)
        _log.configure(config.log_level, topology.rank)
        _generation += 1
        _startup.start(topology, config, _generation)
        config_module.set_current(config)
        _job = _Job(topology, config, os.getpid())
        _exit_hooks.install(_leave_failing)
    if topology.rank == 0:
        _log.info(_startup.describe(topology, config))


def shutdown() -> None:
    """Leaves the job in peace; collectives that still wait fail.

    `init()` may follow and joins anew, if every rank calls both. Without a
    job it does nothing.
    """
    global _job
    with _lock:
        if _is_member():
            _job = None
            _startup.stop("shutdown() was called")


def is_initialized() -> bool:
    """Whether this process has joined a job and not left it."""
    return _is_member()


def rank() -> int:
    """The index of this process in the job, in [0, `size()`)."""
    return _topology("rank").rank


def size() -> int:
    """The number of processes in the job."""
    return _topology("size").size


def local_rank() -> int:
    """The index of this process among those of the job on this host."""
    return _topology("local_rank").local_rank


def local_size() -> int:
    """The number of processes of the job on this host."""
    return _topology("local_size").local_size


def cross_rank() -> int:
    """The index of this host in the job."""
    return _topology("cross_rank").cross_rank


def cross_size() -> int:
    """The number of hosts in the job."""
    return _topology("cross_size").cross_size


def stats() -> dict[str, int]:
    """Counts of what this rank has done since `init()`.

    Returns:
        `num_requests` (tensors or groups submitted), `num_collectives` (run,
        after fusion), `num_bytes` (of their inputs), `num_cache_hits` and
        `num_cache_misses` (requests agreed on by a bit, or in full).
    """
    _topology("stats")
    counts: dict[str, int] = _native.core().stats()
    return counts


def _is_member() -> bool:
    # A forked child has the memory of its parent, but not its threads.
    return _job is not None and _job.pid == os.getpid()


def _topology(caller: str) -> Topology:
    job = _job
    if job is None:
        raise NotInitializedError(
            f"`init()` must be called before `{caller}()`. Received: no call, "
            "or `shutdown()` after it."
        )
    if job.pid != os.getpid():
        raise NotInitializedError(
            f"`{caller}()` must be called in the process that called "
            f"`init()` (pid {job.pid}). Received: a call in its child (pid "
            f"{os.getpid()})."
        )
    return job.topology


def _leave_failing(reason: str) -> None:
    """Tells launcher and peers why this rank fails, and leaves the job."""
    global _job
    job = _job
    if job is None or job.pid != os.getpid():
        return
    _job = None
    with contextlib.suppress(Exception):  # the exception must be printed
        _native.core().note_exit_reason(reason)
        _bootstrap.report_failure(job.topology, job.config, _generation, reason)
        _startup.stop(reason)


@atexit.register
def _leave_at_exit() -> None:
    global _job
    job = _job
    if job is not None and _is_member():
        _job = None
        # The launcher first: a peer may fail because of it, and sooner.
        _bootstrap.report_leaving(job.topology, job.config, _generation)
        _startup.stop("the process exited without shutdown()")
