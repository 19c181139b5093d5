"""What ranks have told hvdrun's user to read when the job has ended."""

from __future__ import annotations

from collections.abc import Iterator

from hvd_keras._common.remarks import Remark
from hvd_keras._common.terminal import one_line
from hvd_keras._rendezvous.protocol import Report

_MOST = 16  # of a job
_MOST_NAMED = 8


class RemarksOfRanks:
    """Keeps each remark once, with the ranks that have made it."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._ranks: dict[str, list[int]] = {}

    def note(self, told: Report) -> None:
        """Notes what a rank has told."""
        remark = Remark.of_packed(told.text)
        if remark.about in self._texts or len(self._texts) < _MOST:
            self._texts.setdefault(remark.about, remark.text)
            self._ranks.setdefault(remark.about, []).append(told.rank)

    def __bool__(self) -> bool:
        return bool(self._texts)

    def lines(self) -> Iterator[str]:
        """Yields what to say, one line for each."""
        for about, text in self._texts.items():
            ranks = sorted(set(self._ranks[about]))
            numbers = ", ".join(map(str, ranks[:_MOST_NAMED]))
            more = " and others" if len(ranks) > _MOST_NAMED else ""
            who = f"rank{'s' * (len(ranks) > 1)} {numbers}{more}"
            yield f"warning of {who}: {one_line(text)}"
