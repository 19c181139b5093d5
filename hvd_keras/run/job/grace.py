"""The time that ranks get to end by themselves; then they are killed."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence

from hvd_keras.run.job.policy import Action, Say, Signal
from hvd_keras.run.ranks.rank import Rank
from hvd_keras.run.screen import report

# From SIGTERM to SIGKILL, after the grace time.
_TERMINATION_SECONDS = 3.0


class Grace:
    """Ends the ranks of a job when their time is over."""

    def __init__(
        self,
        seconds: float,
        ranks: Sequence[Rank],
        act: Callable[[Action], None],
    ) -> None:
        """Does nothing until `begin`; `act` takes what is to be done then."""
        self._seconds = seconds
        self._ranks = ranks
        self._act = act
        self._next_kill: tuple[float, int] | None = None  # when, which

    def begin(self, now: float, times: int = 1) -> None:
        """Gives all ranks so many times the grace time, or what they have."""
        at = now + times * self._seconds
        if self._next_kill is None or (
            self._next_kill[1] == signal.SIGTERM and self._next_kill[0] > at
        ):
            self._next_kill = (at, signal.SIGTERM)

    def next_deadline(self) -> float | None:
        """Returns the time by which `step()` must be called."""
        return None if self._next_kill is None else self._next_kill[0]

    def step(self, now: float) -> None:
        """Ends ranks if their time is over."""
        if self._next_kill is None or now < self._next_kill[0]:
            return
        number = self._next_kill[1]
        left = [rank for rank in self._ranks if not rank.has_ended]
        for rank in left:
            self._act(
                Say(
                    f"rank {rank.rank} ({rank.process}) still runs after the "
                    f"grace time; it gets {report.signal_name(number)}"
                )
            )
            rank.sent = number
        for one in (number, signal.SIGCONT):
            self._act(Signal(one, [rank.rank for rank in left]))
        self._next_kill = (now + _TERMINATION_SECONDS, signal.SIGKILL)
