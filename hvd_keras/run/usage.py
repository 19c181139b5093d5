"""The error of a command line that cannot be obeyed."""

from __future__ import annotations


class UsageError(Exception):
    """hvdrun cannot do what the command line asks for."""

    def __init__(self, message: str, exit_status: int = 2) -> None:
        super().__init__(message)
        self.exit_status = exit_status
