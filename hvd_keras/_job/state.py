"""What this process knows of its job: its place, the settings, the generation.

Only this module holds it; only `basics.py` and `startup.py` change it.
"""

from __future__ import annotations

import dataclasses
import os

from hvd_keras._common import horovod_site, user_code
from hvd_keras._rendezvous.topology import Topology
from hvd_keras.config import Config
from hvd_keras.exceptions import NotInitializedError


@dataclasses.dataclass(frozen=True)
class Job:
    """A membership that this process has joined and not left."""

    topology: Topology
    config: Config
    pid: int  # a forked child inherits this object, but is not a member


_job: Job | None = None
_config = Config()
_generation = 0


def job() -> Job | None:
    """Returns the job that this process is in, or None."""
    if _job is None or _job.pid != os.getpid():
        return None
    return _job


def topology(caller: str) -> Topology:
    """Returns the place of this process in its job.

    Raises:
        NotInitializedError: It is in no job. The message names the function of
            ours that other code has called, or `caller`.
    """
    if _job is None:
        raise not_initialized(caller)
    return _joined(f"`{caller}()`").topology


def check_joined(action: str) -> None:
    """Raises NotInitializedError if this process is in no job.

    Args:
        action: What needs the job, for the message.
    """
    _joined(action)


def _joined(action: str) -> Job:
    if _job is None:
        raise _not_initialized(action)
    if _job.pid != os.getpid():
        raise NotInitializedError(
            f"{action} must happen in the process that called `init()` (pid "
            f"{_job.pid}). Received: a call in its child (pid {os.getpid()})."
        )
    return _job


def not_initialized(caller: str) -> NotInitializedError:
    """Returns the error of what has been called, or `caller`, without a job."""
    return _not_initialized(f"`{user_code.called() or caller}()`")


def _not_initialized(action: str) -> NotInitializedError:
    # Programs and their tests look for Horovod's words.
    is_horovod = horovod_site.is_used()
    words = "Horovod has not been initialized. " if is_horovod else ""
    return NotInitializedError(
        f"{words}`init()` must be called before {action}: at the start of the "
        "program, on every rank. Received: no call, or a later `shutdown()`."
    )


def config() -> Config:
    """Returns the settings that `init()` read last; before it, the defaults."""
    return _config


def generation() -> int:
    """Returns the number of the last membership that this process joined.

    The rendezvous server numbers memberships, so the number is the same on all
    ranks, new ones included. It is 0 before the first one, and `shutdown()`
    does not change it.
    """
    return _generation


# ---- For basics.py and startup.py ----


def set_generation(generation: int) -> None:
    """Notes the membership that `init()` is joining, even if that fails."""
    global _generation
    _generation = generation


def enter(topology: Topology, config: Config) -> None:
    """Notes that this process has joined a job."""
    global _job, _config
    _config = config
    _job = Job(topology, config, os.getpid())


def leave() -> Job | None:
    """Notes that this process has left its job; returns the one it was in."""
    global _job
    left = job()
    if left is not None:
        _job = None
    return left
