"""Finds the rank that all others wait for."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from hvd_keras import _native
from hvd_keras._common import log
from hvd_keras._job import membership, state

_MOST = 0.5  # of all the waiting
_MIN_STEPS = 10  # tell what a step usually takes

Array = np.ndarray[Any, Any]


class StragglerWatch:
    """Tells hvdrun of a rank that makes steps much longer. For rank 0."""

    def __init__(self) -> None:
        config = state.config()
        self._factor = config.straggler_factor
        self._seconds = config.straggler_seconds
        self._begin(time.monotonic())

    def look(self) -> None:
        """Looks at the last while when that is over; cheap before."""
        now = time.monotonic()
        if not self._factor or now - self._began < self._seconds:
            return
        stats = _stats()
        passed = {name: stats[name] - self._stats[name] for name in stats}
        found = find(
            _last_ranks() - self._ranks,
            waited=(passed["pending_ns"] - passed["running_ns"]) / 1e9,
            num_steps=passed["num_steps"],
            seconds=now - self._began,
            factor=self._factor,
        )
        if found is not None:
            rank, text = found
            log.notice(f"rank {rank} {text}")
            membership.report_straggler(rank, text)
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._began = now
        self._ranks, self._stats = _last_ranks(), _stats()


def find(
    last_ranks: Array,
    *,
    waited: float,
    num_steps: int,
    seconds: float,
    factor: float,
) -> tuple[int, str] | None:
    """Returns the rank that makes steps longer, and how.

    Args:
        last_ranks: `[rank, (times, ns)]`: how often each rank was the last to
            come, and how long the first one waited for it, in these seconds.
        waited: The seconds of them in which rank 0 waited for others.
        num_steps: Steps of training in that time.
        seconds: The time.
        factor: How much longer a step must be.
    """
    times, late_ns = last_ranks.T
    total_ns = int(late_ns.sum())
    if num_steps < _MIN_STEPS or total_ns == 0:
        return None
    rank = int(late_ns.argmax())
    # Calls that wait at the same time count each.
    if rank == 0:
        late = float(late_ns[0]) / 1e9 / max(1, times[0])
    else:
        late = min(float(late_ns[rank]) / 1e9, waited) / num_steps
    step = seconds / num_steps
    if late_ns[rank] <= _MOST * total_ns or step < factor * (step - late):
        return None
    return rank, (
        f"was waited for {1e3 * late:.0f} ms of a step of {1e3 * step:.0f} ms, "
        f"in the mean of the last {seconds:.0f} s; that is "
        f"{late_ns[rank] / total_ns:.0%} of all waiting"
    )


def _last_ranks() -> Array:
    return np.array(_native.core().last_ranks(), np.int64).reshape(-1, 2)


def _stats() -> dict[str, int]:
    stats: dict[str, int] = _native.core().stats()
    return stats
