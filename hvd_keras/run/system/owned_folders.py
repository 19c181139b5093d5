"""Folders of a job, which no other job may write to meanwhile."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterable, Iterator

from hvd_keras._common import owners

_RENEW_SECONDS = 5.0
_renewed_at = 0.0


@contextlib.contextmanager
def owned_folders(folders: Iterable[str | None]) -> Iterator[None]:
    """Makes the job within the only one that writes the files of hvdrun.

    Raises:
        FileInUseError: Another job writes there.
    """
    paths = [
        os.path.join(folder, "hvdrun")
        for folder in folders
        if folder is not None
    ]
    try:
        for path in paths:
            # Who writes there tells of a bad folder, and may do without it.
            with contextlib.suppress(OSError):
                # No thread: hvdrun forks.
                owners.claim(path, tell=_tell, keeps_alive=False)
        yield
    finally:
        for path in paths:
            owners.release(path)


def seconds_until_due() -> float | None:
    """Returns when `renew_if_due` wants to be called; None: never."""
    if not owners.is_owner():
        return None
    return max(0.0, _renewed_at + _RENEW_SECONDS - time.monotonic())


def renew_if_due() -> None:
    """Tells other hosts that this job goes on."""
    global _renewed_at
    if seconds_until_due() == 0.0:
        _renewed_at = time.monotonic()
        owners.renew()


def _tell(text: str) -> None:
    print(f"hvdrun: {text}", file=sys.stderr, flush=True)
