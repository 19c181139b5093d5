"""Virtual time, and what happens in it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Clock:
    """Calls functions in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[..., Any], Any]] = []
        self._count = 0

    def at(self, when: float, call: Callable[..., Any], *given: Any) -> None:
        """Calls a function at that time."""
        self._count += 1
        heapq.heappush(self._queue, (when, self._count, call, given))

    def next_time(self) -> float | None:
        """Returns when the next call is due; None: there is none."""
        return self._queue[0][0] if self._queue else None

    def step(self) -> None:
        """Makes the next call."""
        when, _, call, given = heapq.heappop(self._queue)
        self.now = max(self.now, when)
        call(*given)
