"""The live table of `hvdrun --status`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hvd_keras._common.json_text import parsed
from hvd_keras._common.terminal import cell, in_columns
from hvd_keras.run.ranks.rank import Rank

# A rank that has told nothing for so long is shown as silent.
_SILENT_SECONDS = 5.0
_HEADER = (
    "rank", "host", "step", "steps/s", "waits", "runs", "MB/s", "memory", "",
)  # fmt: skip


@dataclasses.dataclass
class _News:
    """What a rank has told last, and at the last table."""

    heard_at: float
    now: Mapping[str, float]
    shown: Mapping[str, float] | None = None


class Status:
    """Takes what the ranks tell of themselves, and shows it."""

    def __init__(self, seconds: float) -> None:
        """Shows a table every so many seconds."""
        self._seconds = seconds
        self._next = time.monotonic() + seconds
        self._news: dict[int, _News] = {}

    def note(self, rank: int, text: str) -> None:
        """Takes what a rank tells."""
        try:
            now: Any = parsed(text)
        except ValueError:
            return
        keys = ("time", "steps", "pending", "running", "bytes", "memory")
        if not isinstance(now, dict) or not all(
            isinstance(now.get(key), int | float) for key in keys
        ):
            return
        news = self._news.setdefault(rank, _News(0.0, now))
        news.heard_at, news.now = time.monotonic(), now

    def next_deadline(self) -> float:
        """Returns when the next table is due."""
        return self._next

    def table_if_due(self, ranks: Sequence[Rank]) -> str:
        """Returns the table, or an empty text if it is not due."""
        now = time.monotonic()
        if now < self._next:
            return ""
        self._next = now + self._seconds
        rows: list[tuple[str, ...]] = [_HEADER]
        for rank in ranks:
            number = rank.rank
            host = cell(rank.host or "-")
            rows.append((str(number), host, *self._row(number, now),
                         self._remark(rank, number, now)))  # fmt: skip
        lines = [line.rstrip() for line in in_columns(rows, (0, *range(2, 8)))]
        return "\n".join([time.strftime("status at %H:%M:%S"), *lines])

    def _row(self, rank: int, now: float) -> tuple[str, ...]:
        news = self._news.get(rank)
        if news is None:
            return ("-",) * 6
        new, old = news.now, news.shown
        news.shown = new
        memory = f"{new['memory'] / 1e9:.2f} GB"
        steps = f"{new['steps']:.0f}"
        seconds = new["time"] - old["time"] if old else 0.0
        if old is None or seconds <= 0.0:
            return (steps, "-", "-", "-", "-", memory)

        def rate(key: str) -> float:
            return max(0.0, new[key] - old[key]) / seconds

        running = min(1.0, rate("running"))
        waiting = min(1.0, max(0.0, rate("pending") - running))
        return (
            steps,
            f"{rate('steps'):.1f}",
            f"{waiting:.0%}",
            f"{running:.0%}",
            f"{rate('bytes') / 1e6:.0f}",
            memory,
        )

    def _remark(self, rank: Rank, number: int, now: float) -> str:
        if rank.has_ended:
            return "ended"
        news = self._news.get(number)
        if news is None:
            return "starting"
        silent = now - news.heard_at
        return f"silent for {silent:.0f} s" if silent > _SILENT_SECONDS else ""
