"""How a job has ended: what its ranks have told, and what follows from it."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from hvd_keras._records.blame import Blame, End, Evidence, blame
from hvd_keras._rendezvous.protocol import Report, ReportKind
from hvd_keras.run.ranks.rank import Rank
from hvd_keras.run.screen import report


class Outcome(NamedTuple):
    """How a job has ended, for whoever has started it."""

    exit_status: int
    text: str = ""  # what hvdrun has said of it; "": nothing
    rank: int | None = None  # that failed; None: none did
    rank_status: int | None = None  # the exit status of that rank


class Ends:
    """What is known of the ranks that have ended, or begin to.

    Attributes:
        leavers: Ranks that began to end, in order.
        interruption: The signal to hvdrun that ended the job before any rank
            had failed; None: there was none.
        ran_at_signal: The ranks that ran when a signal to hvdrun came after a
            failure.
    """

    def __init__(self, ranks: list[Rank]) -> None:
        """Watches `ranks`, which may grow."""
        self.leavers: list[int] = []
        self.interruption: int | None = None
        self.ran_at_signal: set[int] = set()
        self._reports: dict[int, Report] = {}  # why they end
        self._ended_by: dict[int, str] = {}  # what those told that end well
        self._last_words: dict[int, str] = {}
        self._tracebacks: dict[int, str] = {}
        self._ranks = ranks

    def note_leaving(self, rank: int, told: Report | None = None) -> None:
        """Notes that a rank begins to end, and what it told before."""
        if rank >= len(self._ranks):
            return
        if rank not in self.leavers:
            self.leavers.append(rank)
        # Its exit may be known before what it told.
        if told is not None and told.kind == ReportKind.ENDS:
            self._ended_by.setdefault(rank, told.text)

    def ended_by(self, rank: int) -> str | None:
        """Returns the call by which a rank has ended itself.

        Returns:
            "": it has come to the end of its script; None: it did not tell.
        """
        return self._ended_by.get(rank)

    def note(self, told: Report) -> None:
        """Notes why a rank fails; the first reason counts."""
        self._reports.setdefault(told.rank, told)

    def note_last_words(
        self, rank: int, words: str, traceback: str = ""
    ) -> None:
        """Notes what a rank has printed last, and its last traceback."""
        self._last_words[rank] = words
        self._tracebacks[rank] = traceback

    def traceback(self, rank: int) -> str:
        """Returns the last one that a rank has printed; "": none."""
        return self._tracebacks.get(rank, "")

    def last_words(self, rank: int) -> str:
        """Returns the error that a rank has told, or else printed; "": none."""
        return self.error(rank) or self._last_words.get(rank, "")

    def error(self, rank: int) -> str:
        """Returns the error that a rank has told; "": none."""
        told = self._reports.get(rank)
        return "" if told is None else told.text

    def was_preempted(self, rank: int) -> bool:
        """Whether a rank had to stop, and has saved."""
        told = self._reports.get(rank)
        return told is not None and told.kind == ReportKind.PREEMPTED

    def was_ended(self, rank: Rank) -> bool:
        """Whether hvdrun or its user has ended a rank because of a failure."""
        return rank.sent is not None or rank.rank in self.ran_at_signal

    def note_signal(self) -> None:
        """Notes a signal to hvdrun that came after a failure."""
        self.ran_at_signal |= {
            rank.rank for rank in self._ranks if not rank.has_ended
        }

    def blame(self, among: Collection[int] | None = None) -> Blame:
        """Returns who is to blame.

        Args:
            among: Only these ranks count; None: all.
        """
        number = self.interruption
        order = dict.fromkeys([*self.leavers, *(r.rank for r in self._ranks)])
        ends = [
            self._end(self._ranks[rank])
            for rank in order
            if among is None or rank in among
        ]
        name = "" if number is None else report.signal_name(number)
        return blame(Evidence(ends, number is not None, name))

    def _end(self, rank: Rank) -> End:
        return End(
            rank.rank,
            self.error(rank.rank),
            rank.exit_status,
            "" if rank.signal is None else rank.signal_name(),
            self.was_ended(rank),
            rank.is_lost,
            last_words=self._last_words.get(rank.rank, ""),
        )

    def exit_status(self, found: Blame) -> int:
        """Returns the exit status of a job that ended so."""
        if found.rank is None:
            return 0
        first = self._ranks[found.rank]
        return report.exit_status(first, self.error(first.rank))

    def outcome(self, found: Blame, status: int, text: str) -> Outcome:
        """Returns the outcome of a job in which a rank has failed."""
        rank = found.rank
        own = None if rank is None else self._ranks[rank].exit_status
        return Outcome(status, text, rank, own)

    def describe(self, found: Blame, seconds: float) -> str:
        """Returns what to say of a job that failed so, after a time."""
        assert found.rank is not None
        first = self._ranks[found.rank]
        if self.interruption is not None:
            return report.interruption(self.interruption)
        if found.shared_error or found.shared_status is not None:
            return report.shared_failure(first, seconds)
        return report.verdict(first, self.error(first.rank), seconds)
