"""The exceptions that hvd_keras raises. Callers catch types, never texts.

    HvdError
     ├── NotInitializedError (ValueError)   init() was not called, or undone
     ├── InvalidArgumentError (ValueError)  this rank's own call is wrong
     ├── ConfigError (ValueError)           a setting is unknown or bad
     ├── LaunchError                        the launcher's data are unusable
     ├── MismatchError                      ranks disagree
     │    └── ProcessSetMismatchError (ValueError)  on the process sets
     └── JobError                           a collective failed:
          ├── PeerLostError                 a rank died or left the job
          ├── StalledError                  a rank did not come in time
          ├── ShutdownError                 shutdown() while the call waited
          └── InternalError                 a system call failed, or a bug

Errors of TensorFlow ops are also instances of TensorFlow's own classes: a
`PeerLostError`, for example, is a `tf.errors.UnavailableError` too.
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
    """The base of all exceptions that hvd_keras raises on purpose."""


class NotInitializedError(HvdError, ValueError):
    """`init()` was not called, or `shutdown()` was."""


class InvalidArgumentError(HvdError, ValueError):
    """A call is wrong in itself; this rank can tell without the others."""


class ConfigError(HvdError, ValueError):
    """A setting is unknown or has an invalid value."""


class LaunchError(HvdError):
    """The launcher's description of the job is unusable: see the message."""


class MismatchError(HvdError):
    """Ranks disagree; every rank gets this error with both values."""


class ProcessSetMismatchError(MismatchError, ValueError):
    """Ranks disagree on the process sets."""


class JobError(HvdError):
    """A collective failed although its arguments were right."""


class PeerLostError(JobError):
    """A rank that this call needs died or left the job."""


class StalledError(JobError):
    """A rank that this call needs did not come before the deadline."""


class ShutdownError(JobError):
    """This rank was shut down while the call waited."""


class InternalError(JobError):
    """A system call failed, or hvd_keras has a bug."""
