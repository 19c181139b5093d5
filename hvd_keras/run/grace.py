"""The time that ranks get to end by themselves; then they are killed."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from hvd_keras.run import report
from hvd_keras.run.hosts import Host
from hvd_keras.run.rank import Rank

# From SIGTERM to SIGKILL, after the grace time.
_TERMINATION_SECONDS = 3.0


class Grace:
    """Ends the ranks of a job when their time is over."""

    def __init__(
        self,
        seconds: float,
        hosts: Sequence[Host],
        ranks: Sequence[Rank],
        say: Callable[[str], None],
    ) -> None:
        """Does nothing until `begin`.

        Args:
            seconds: The grace time.
            hosts: The hosts of the job, which may grow.
            ranks: Its ranks, which may grow.
            say: Shows a line.
        """
        self._seconds = seconds
        self._hosts = hosts
        self._ranks = ranks
        self._say = say
        self._next_kill: tuple[float, int] | None = None  # when, which

    def begin(self, times: int = 1) -> None:
        """Gives all ranks so many times the grace time, or what they have."""
        at = time.monotonic() + times * self._seconds
        if self._next_kill is None or (
            self._next_kill[1] == signal.SIGTERM and self._next_kill[0] > at
        ):
            self._next_kill = (at, signal.SIGTERM)

    def next_deadline(self) -> float | None:
        """Returns the monotonic time by which `step()` must be called."""
        return None if self._next_kill is None else self._next_kill[0]

    def step(self) -> None:
        """Ends ranks if their time is over."""
        if self._next_kill is None or time.monotonic() < self._next_kill[0]:
            return
        number = self._next_kill[1]
        for host in self._hosts:
            left = [
                self._ranks[rank]
                for rank in host.place.ranks()
                if not self._ranks[rank].has_ended
            ]
            for rank in left:
                self._say(
                    f"rank {rank.rank} ({rank.process}) still runs after the "
                    f"grace time; it gets {report.signal_name(number)}"
                )
                rank.sent = number
            for one in (number, signal.SIGCONT):
                if left:
                    ranks = [rank.rank for rank in left]
                    host.signal(one, ranks, to_groups=True)
        at = time.monotonic() + _TERMINATION_SECONDS
        self._next_kill = (at, signal.SIGKILL)
