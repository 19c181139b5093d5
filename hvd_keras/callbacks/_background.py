"""Files that rank 0 writes while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hvd_keras import objects
from hvd_keras._common import files, log, owners
from hvd_keras._job.hosts import partition
from hvd_keras._keras import calls as keras_calls
from hvd_keras.callbacks._rank_zero import on_rank_zero


class BackgroundWriter:
    """Writes on rank 0, in a thread; one file after the other.

    The thread is no daemon: a process that ends waits for it.

    Args:
        name: Names what writes, and pairs its calls across ranks.
        path: What it writes, which `claim` has got for this job.
        is_spare: Whether training goes on without what the system cannot
            write, such as on a full disk. Each time, a warning says so.
    """

    def __init__(self, name: str, path: str, *, is_spare: bool = False) -> None:
        self._name = name
        self._path = path
        self._is_spare = is_spare
        self._has_written = True
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
                self._has_written = False
                write()
                self._has_written = True
            except Exception as error:
                if not self._is_spare or not isinstance(error, OSError):
                    self._error = error
                    return
                log.warning(
                    f"{self._name} failed: {error}. Training goes on; "
                    "what was saved before stays"
                )

        thread = threading.Thread(target=run, name=f"hvd_keras {self._name}")
        self._thread = thread
        _running[:] = [each for each in _running if each.is_alive()]
        _running.append(thread)
        thread.start()

    def check(self) -> None:
        """Raises what a write has raised that has ended; on rank 0."""
        if self._thread is not None and not self._thread.is_alive():
            self._join()

    def finish(self, last: Callable[[], None] = lambda: None) -> bool:
        """Waits for the last write, then lets other jobs write.

        All ranks call it.

        Args:
            last: Called on rank 0 before others may write.

        Returns:
            Whether the last write has succeeded; False for a spare only.

        Raises:
            HvdError: On the other ranks, if it failed. Rank 0 raises what it
                has raised.
        """

        def finish() -> bool:
            has_written = self._join()
            last()
            owners.release(self._path)
            return has_written

        has_written: bool = on_rank_zero(f"{self._name}/finish", finish)
        return has_written

    def _join(self) -> bool:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error
        return self._has_written


_running: list[threading.Thread] = []


def wait_for_all() -> None:
    """Waits for the writes of this process, those of earlier calls of `fit`."""
    for thread in list(_running):
        thread.join()


# The processes of this job that wrote each path last.
_known: dict[str, str] = {}


def claim(
    name: str, path: str, check: Callable[[], None] = lambda: None
) -> None:
    """Makes rank 0 the only process that writes `path`. All ranks call it.

    Ranks of one job hand over to each other, also those that have died. On a
    full disk nobody owns the path yet: who writes must claim it. The end of the
    running `fit` lets go.

    Args:
        name: Pairs the call across ranks.
        path: What will be written.
        check: Called on rank 0 before.

    Raises:
        FileInUseError: On rank 0: a rank of another job writes there.
        OSError: On rank 0: nothing can be written there.
        HvdError: On the other ranks: that.
    """
    mine = [owners.me().name, _known.get(path, "")]
    ranks = objects.allgather_object(mine, name=f"{name}/owners")
    of_job = {each for names in ranks for each in names}

    def claim_here() -> str:
        check()
        try:
            owners.claim(path, of_job=of_job, tell=log.info)
            files.remove_left_over(path, is_owned=True)
        except OSError as error:
            # Who writes claims again, and tells then what it means.
            if not owners.is_full(error):
                raise
        return owners.me().name

    _known[path] = on_rank_zero(f"{name}/claim", claim_here)
    fit = keras_calls.running_fit()
    if fit is not None:
        fit.at_end.append(lambda: _let_go(path))


def _let_go(path: str) -> None:
    wait_for_all()
    owners.release(path)
