"""A file of `--output-dir`."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path


class LogFile:
    """Gets every byte that a rank writes to one stream, while that works.

    Training is worth more than its log: if the file cannot be written, the job
    goes on without it.
    """

    def __init__(
        self, path: Path, on_failure: Callable[[Path, OSError], None]
    ) -> None:
        """Creates the file and its directories.

        Args:
            path: The file; one that is there is replaced.
            on_failure: Called with the path and the error when the file cannot
                be written any more.
        """
        self._path = path
        self._on_failure = on_failure
        self._file: io.FileIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "wb", buffering=0)  # noqa: SIM115
        except OSError as error:
            on_failure(path, error)

    def write(self, data: bytes) -> None:
        """Adds `data`."""
        left = memoryview(data)
        while self._file is not None and left:
            try:
                left = left[self._file.write(left) :]
            except OSError as error:
                self.close()
                self._on_failure(self._path, error)

    def close(self) -> None:
        """Ends the file; later data is dropped."""
        if self._file is not None:
            self._file.close()
            self._file = None
