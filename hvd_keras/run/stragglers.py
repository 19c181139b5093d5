"""What hvdrun does about ranks that the others wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hvd_keras._job.bootstrap.wire import Report

# Until another process takes the place of one that was too slow: what slows it
# may pass.
SECONDS = 60.0


class Stragglers:
    """Tells of slow members, and has them leave if asked to.

    Attributes:
        evicted: The members that had to leave.
    """

    def __init__(
        self,
        evicts: bool,
        say: Callable[[str], None],
        ask_to_leave: Callable[[Sequence[int]], None],
    ) -> None:
        self.evicted: set[int] = set()
        self._evicts = evicts
        self._say = say
        self._ask_to_leave = ask_to_leave

    def note(self, told: Report, members: Sequence[int], min_size: int) -> None:
        """Takes what a rank has told.

        Args:
            told: What it is; its rank is one of the present epoch.
            members: Those of the epoch, by rank.
            min_size: How many there must be.
        """
        if told.rank >= len(members):
            return
        member = members[told.rank]
        if member in self.evicted:
            return
        what = f"member {member} (rank {told.rank}) {told.text}"
        if self._evicts and len(members) > min_size:
            self.evicted.add(member)
            self._say(f"{what}; it has to leave (--evict-stragglers)")
            self._ask_to_leave([member])
        else:
            self._say(what)
