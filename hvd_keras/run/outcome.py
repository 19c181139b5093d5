"""Who began to end a job, why, and which rank is to blame."""

from __future__ import annotations

from collections.abc import Collection

from hvd_keras._observe.shared_errors import shared_error
from hvd_keras.run import report
from hvd_keras.run.own_errors import OF_OTHERS
from hvd_keras.run.rank import Rank


class Outcome:
    """What is known of the ranks that have ended, or begin to.

    Attributes:
        leavers: Ranks that began to end, in order.
        reasons: What failing ranks have told, by rank.
    """

    def __init__(self, ranks: list[Rank], *, is_of_one_host: bool) -> None:
        """Watches `ranks`, which may grow."""
        self.leavers: list[int] = []
        self.reasons: dict[int, str] = {}
        self._ranks = ranks
        self._is_of_one_host = is_of_one_host

    def note_leaving(self, rank: int) -> None:
        """Notes that a rank begins to end."""
        if rank < len(self._ranks) and rank not in self.leavers:
            self.leavers.append(rank)

    def reason(self, rank: int) -> str:
        """Returns what a rank has told; "": nothing."""
        return self.reasons.get(rank, "")

    def describe(
        self, first: Rank, ended_by: int | None, seconds: float
    ) -> str:
        """Returns what to say of the end of a job.

        Args:
            first: The rank to blame.
            ended_by: The signal that ended a job in which no rank had failed.
            seconds: How long the job took.
        """
        if ended_by is not None:
            return report.interruption(ended_by)
        if self._is_shared():
            return report.shared_failure(first, seconds)
        return report.verdict(first, self.reason(first.rank), seconds)

    def has_ended_as_told(self, ended_by: int | None) -> bool:
        """Whether that signal, or what follows, has ended all ranks."""
        if ended_by is None:
            return False
        for rank in self._ranks:
            told = self.reason(rank.rank)
            # The signal may interrupt a rank before it has told of another's.
            if told and not told.startswith(OF_OTHERS):
                return False
            if not told and rank.signal not in (None, ended_by):
                return False
        return True

    def _is_shared(self) -> bool:
        """Whether all ranks that nobody has killed told the same error."""
        own = [
            self.reason(rank.rank)
            for rank in self._ranks
            if rank.signal is None and rank.sent is None and not rank.is_lost
        ]
        return bool(shared_error(own))

    def exit_status(self) -> int:
        """Returns the exit status of the launcher."""
        first = self.first_to_blame()
        if first is None:
            return 0
        return report.exit_status(first, self.reason(first.rank))

    def first_to_blame(
        self, among: Collection[int] | None = None
    ) -> Rank | None:
        """Returns the rank whose failure is the cause of all others.

        Args:
            among: Only these ranks count; None: all.
        """
        failed = [
            self._ranks[rank]
            for rank in self.leavers
            if self._ranks[rank].exit_status != 0
            and (among is None or rank in among)
        ]
        # A rank that we had to end may have done all its work.
        by_themselves = [
            r for r in failed if r.sent is None or r.rank in self.reasons
        ]
        # Rank 0 tells the others of its error before it raises it. Of another
        # host, we may hear of the cause after its effects.
        effects: tuple[str, ...] = ("HvdError:",)
        if not self._is_of_one_host:
            effects += ("PeerLostError",)
        causes = [
            r
            for r in by_themselves
            if not self.reason(r.rank).startswith(effects)
        ]
        return next(iter(causes or by_themselves or failed), None)
