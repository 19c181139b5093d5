"""Logs messages of hvd_keras on stderr, with the time and the level."""

from __future__ import annotations

import logging
import threading

from hvd_keras._common import remarks
from hvd_keras.exceptions import StrictError

_logger = logging.getLogger("hvd_keras")
_LEVELS = {"trace": logging.DEBUG, "fatal": logging.CRITICAL}


def configure(level: str, rank: int, *, is_strict: bool = False) -> None:
    """Shows messages of `level` or above, each with `rank` in front.

    Args:
        level: One of `config.LOG_LEVELS`.
        rank: That of this process.
        is_strict: Whether warnings are errors.
    """
    global _prefix, _is_strict
    _is_strict = is_strict
    _prefix = f"hvd_keras rank {rank}: "
    _logger.setLevel(_LEVELS.get(level, level.upper()))
    if not _logger.hasHandlers():
        handler = logging.StreamHandler()
        form = "%(asctime)s %(levelname)s %(message)s"
        handler.setFormatter(logging.Formatter(form))
        _logger.addHandler(handler)
        _logger.propagate = False


_prefix = "hvd_keras: "
_is_strict = False


def is_shown() -> bool:
    """Whether anybody reads what `info` logs."""
    return _logger.isEnabledFor(logging.INFO)


def info(message: str) -> None:
    """Logs a message about normal operation."""
    _logger.info("%s%s", _prefix, message, stacklevel=2)


def warning(message: str) -> None:
    """Logs a message about a likely mistake.

    Raises:
        StrictError: Warnings are errors. A thread in the background logs.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if _is_strict and is_main:
        raise StrictError(message)
    _logger.warning("%s%s", _prefix, message, stacklevel=2)


def mistake(message: str, about: str = "") -> None:
    """Warns of a likely mistake, and has hvdrun say so when the job has ended.

    Args:
        message: One line.
        about: Of what has the same `about`, hvdrun says the first.

    Raises:
        StrictError: See `warning`.
    """
    remarks.keep(message, about)
    warning(message)


def notice(message: str) -> None:
    """Logs a message about something that is no mistake of the program."""
    _logger.warning("%s%s", _prefix, message, stacklevel=2)
