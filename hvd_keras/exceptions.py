"""The exceptions that hvd_keras raises. Callers catch types, never texts.

The tree::

    HvdError
     ├── NotInitializedError (ValueError)   init() was not called, or undone
     ├── InvalidArgumentError (ValueError)  this rank's own call is wrong
     ├── ConfigError (ValueError)           a setting is unknown or bad
     ├── LaunchError                        the launcher's data are unusable
     ├── FileInUseError                     another job writes the file
     ├── DamagedFileError (ValueError)      a file is not whole
     ├── RankError                          a rank failed in `hvd.run`
     ├── StrictError                        a warning, with HVD_STRICT=1
     ├── MismatchError                      ranks disagree
     │    └── ProcessSetMismatchError (ValueError)  on the process sets
     └── JobError                           a collective failed:
          ├── PeerLostError                 a rank died or left the job
          ├── StalledError                  a rank did not come in time
          ├── ShutdownError                 shutdown() while the call waited
          └── InternalError                 a system call failed, or a bug

Errors of TensorFlow ops are also instances of TensorFlow's own classes: a
`PeerLostError`, for example, is a `tf.errors.UnavailableError` too.

docs/errors.md has the usual causes of each, and the cure.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "DamagedFileError",
    "FileInUseError",
    "HvdError",
    "InternalError",
    "InvalidArgumentError",
    "JobError",
    "LaunchError",
    "MismatchError",
    "NotInitializedError",
    "PeerLostError",
    "ProcessSetMismatchError",
    "RankError",
    "ShutdownError",
    "StalledError",
    "StrictError",
]


class HvdError(Exception):
    """The base of all exceptions that hvd_keras raises on purpose."""

    # AutoGraph keeps the types of such exceptions while it traces a function.
    __init__ = Exception.__init__


class NotInitializedError(HvdError, ValueError):
    """`init()` was not called, or `shutdown()` was."""


class InvalidArgumentError(HvdError, ValueError):
    """A call is wrong in itself, on this rank or on another one."""


class ConfigError(HvdError, ValueError):
    """A setting is unknown or has an invalid value."""


class LaunchError(HvdError):
    """The launcher's description of the job is unusable: see the message."""


class FileInUseError(HvdError):
    """Another job, which still runs, writes the same file."""


class DamagedFileError(HvdError, ValueError):
    """A file is not whole, or not what it should be."""


class RankError(HvdError):
    """A rank that was started from Python failed.

    If its function raised an exception that could travel, that is the
    `__cause__`.

    Attributes:
        rank: The rank that failed first.
        exit_status: Its exit status, 128 + the number of the signal that
            killed it; None if there is none.
        traceback: The traceback of its function as text; "" if it raised
            nothing.
    """

    def __init__(
        self,
        message: str,
        rank: int = -1,
        exit_status: int | None = None,
        traceback: str = "",
    ) -> None:
        super().__init__(message, rank, exit_status, traceback)
        self.rank = rank
        self.exit_status = exit_status
        self.traceback = traceback

    def __str__(self) -> str:
        return str(self.args[0])


class StrictError(HvdError):
    """What would be a warning, had not `HVD_STRICT=1` made it an error."""


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
