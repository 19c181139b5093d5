"""Files that rank 0 writes while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hvd_keras._job.hosts import partition
from hvd_keras.callbacks._rank_zero import on_rank_zero


class BackgroundWriter:
    """Writes on rank 0, in a thread; one file after the other.

    The thread is no daemon: a process that ends waits for it.

    Args:
        name: Names what writes, and pairs its calls across ranks.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def begin(self, write: Callable[[], None]) -> None:
        """Begins to write; on rank 0. It waits for the last write.

        Args:
            write: Called in the thread; what it writes must not change.

        Raises:
            Exception: What the last write has raised.
        """
        self._join()

        def run() -> None:
            try:
                partition.check_may_write(self._name)
                write()
            except Exception as error:
                self._error = error

        thread = threading.Thread(target=run, name=f"hvd_keras {self._name}")
        self._thread = thread
        _running[:] = [each for each in _running if each.is_alive()]
        _running.append(thread)
        thread.start()

    def check(self) -> None:
        """Raises what a write has raised that has ended; on rank 0."""
        if self._thread is not None and not self._thread.is_alive():
            self._join()

    def finish(self) -> None:
        """Waits for the last write. All ranks call it.

        Raises:
            HvdError: On the other ranks, if it failed. Rank 0 raises what it
                has raised.
        """
        on_rank_zero(f"{self._name}/finish", self._join)

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error


_running: list[threading.Thread] = []


def wait_for_all() -> None:
    """Waits for the writes of this process, those of earlier calls of `fit`."""
    for thread in list(_running):
        thread.join()
