"""Logs messages of hvd_keras, in absl's format on stderr."""

from __future__ import annotations

import logging

_logger = logging.getLogger("hvd_keras")
_LEVELS = {"trace": logging.DEBUG, "fatal": logging.CRITICAL}


def configure(level: str, rank: int) -> None:
    """Shows messages of `level` or above, each with `rank` in front."""
    global _prefix
    _prefix = f"hvd_keras rank {rank}: "
    _logger.setLevel(_LEVELS.get(level, level.upper()))
    if not _logger.hasHandlers():
        # absl comes with TensorFlow, but does not import it.
        from absl import logging as absl_logging

        handler = logging.StreamHandler()
        handler.setFormatter(absl_logging.PythonFormatter())
        _logger.addHandler(handler)
        _logger.propagate = False


_prefix = "hvd_keras: "


def info(message: str) -> None:
    """Logs a message about normal operation."""
    _logger.info("%s%s", _prefix, message, stacklevel=2)


def warning(message: str) -> None:
    """Logs a message about something that may become an error."""
    _logger.warning("%s%s", _prefix, message, stacklevel=2)
