"""What hvdrun does about ranks that the others wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hvd_keras._job.bootstrap.wire import STRAGGLER

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

    def note(self, told: str, members: Sequence[int], min_size: int) -> None:
        """Takes what a rank has told.

        Args:
            told: Begins with STRAGGLER; the rank and a text follow.
            members: Those of the epoch, by rank.
            min_size: How many there must be.
        """
        number, _, text = told.removeprefix(STRAGGLER).partition(" ")
        if not number.isdigit() or int(number) >= len(members):
            return
        member = members[int(number)]
        if member in self.evicted:
            return
        what = f"member {member} (rank {number}) {text}"
        if self._evicts and len(members) > min_size:
            self.evicted.add(member)
            self._say(f"{what}; it has to leave (--evict-stragglers)")
            self._ask_to_leave([member])
        else:
            self._say(what)
