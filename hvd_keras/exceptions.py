"""The exceptions that hvd_keras raises. Callers catch types, never texts.

    HvdError
     ├── NotInitializedError (ValueError)   init() was not called, or undone
     ├── InvalidArgumentError (ValueError)  this rank's own call is wrong
     ├── ConfigError (ValueError)           a setting is unknown or bad
     ├── LaunchError                        the launcher's word cannot be used
     ├── MismatchError                      ranks disagree
     │    └── ProcessSetMismatchError (ValueError)  on the process sets
     └── JobError                           a collective could not be done:
          ├── PeerLostError                 a rank died or left the job
          ├── StalledError                  a rank did not come in time
          ├── ShutdownError                 shutdown() while the call waited
          └── InternalError                 a system call failed, or a bug

What a TensorFlow op raises is in addition an instance of TensorFlow's own
class, for instance `tf.errors.UnavailableError` for `PeerLostError`.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "HvdError",
    "InternalError",
    "InvalidArgumentError",
    "JobError",
    "LaunchError",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "ProcessSetMismatchError",
    "ShutdownError",
    "StalledError",
]


class HvdError(Exception):
    """The base of all that hvd_keras raises on purpose."""


class NotInitializedError(HvdError, ValueError):
    """`init()` was not called, or `shutdown()` was."""


class InvalidArgumentError(HvdError, ValueError):
    """A call is wrong in itself: this rank alone can see it."""


class ConfigError(HvdError, ValueError):
    """A setting has no such name, or a value that it cannot have."""


class LaunchError(HvdError):
    """The launcher's word on this job cannot be used: see the message."""


class MismatchError(HvdError):
    """Ranks disagree; every rank gets this error with both values."""


class ProcessSetMismatchError(MismatchError, ValueError):
    """Ranks disagree on the process sets."""


class JobError(HvdError):
    """A collective could not be done, and no argument was wrong."""


class PeerLostError(JobError):
    """A rank that this call needs died or left the job."""


class StalledError(JobError):
    """A rank that this call needs did not come before the deadline."""


class ShutdownError(JobError):
    """This rank was shut down while the call waited."""


class InternalError(JobError):
    """A system call failed, or something that must hold does not."""
