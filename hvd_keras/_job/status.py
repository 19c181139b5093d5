"""Tells hvdrun, now and then, how this rank is doing."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from typing import Any

from hvd_keras import _native, _rendezvous
from hvd_keras._job import state
from hvd_keras._rendezvous import Rendezvous
from hvd_keras._rendezvous.protocol import Report, ReportKind

_SECONDS = 1.0
_NUM_TRIES = 30  # to reach hvdrun, which many ranks may ask at once

_stop: threading.Event | None = None


def begin() -> None:
    """Begins to tell how the job goes that this process has joined."""
    global _stop
    end()
    job = state.job()
    if job is None or not job.config.tell_status:
        return
    _stop = threading.Event()
    threading.Thread(
        target=_tell,
        args=(job, state.generation(), _stop),
        name="hvd_status",
        daemon=True,
    ).start()


def end() -> None:
    """Tells no more."""
    global _stop
    if _stop is not None:
        _stop.set()
    _stop = None


def _tell(job: Any, generation: int, stop: threading.Event) -> None:
    to = _reporter(job, generation, stop)
    # Until the job or hvdrun has ended.
    with contextlib.suppress(Exception):
        while to is not None:
            told = Report(ReportKind.STATUS, to.identity.rank, _news())
            to.tell(told)
            if stop.wait(_SECONDS):
                to.hang_up()
                return


def _reporter(
    job: Any, generation: int, stop: threading.Event
) -> Rendezvous | None:
    """Returns a connection to hvdrun; None: there is none."""
    for _ in range(_NUM_TRIES):
        try:
            return _rendezvous.reporter(job.topology, job.config, generation)
        except Exception:  # it is busy, or gone
            if stop.wait(_SECONDS):
                break
    return None


def _news() -> str:
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
    return json.dumps(news)
