"""Tells hvdrun, now and then, how this rank is doing.

The news go to the standard error, between two marks that no terminal shows, so
they reach hvdrun from every host. It takes them out of the output.
"""

from __future__ import annotations

import json
import os
import threading
import time

from hvd_keras import _native
from hvd_keras._job.bootstrap.status_marks import BEGIN, END
from hvd_keras.config import Config

_SECONDS = 1.0
_STDERR = 2

_stop: threading.Event | None = None


def begin(config: Config) -> None:
    """Begins to tell, if hvdrun listens."""
    global _stop
    end()
    if not config.tell_status:
        return
    _stop = threading.Event()
    threading.Thread(
        target=_tell, args=(_stop,), name="hvd_status", daemon=True
    ).start()


def end() -> None:
    """Tells no more."""
    global _stop
    if _stop is not None:
        _stop.set()
    _stop = None


def _tell(stop: threading.Event) -> None:
    while True:
        try:
            os.write(_STDERR, BEGIN + _news() + END)
        except Exception:  # the job or the output has ended
            return
        if stop.wait(_SECONDS):
            return


def _news() -> bytes:
    stats = _native.core().stats()
    with open("/proc/self/statm", encoding="ascii") as file:
        num_pages = int(file.read().split()[1])
    news = {
        "time": time.monotonic(),
        "steps": stats["num_steps"],
        "pending": stats["pending_ns"] / 1e9,
        "running": stats["running_ns"] / 1e9,
        "bytes": stats["num_bytes"],
        "memory": num_pages * os.sysconf("SC_PAGE_SIZE"),
    }
    return json.dumps(news).encode()
