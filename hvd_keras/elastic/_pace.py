"""What is due in a `fit` that goes on when members change."""

from __future__ import annotations

import dataclasses
import time

from hvd_keras._job import membership, state
from hvd_keras._values.rhythm import Rhythm
from hvd_keras.elastic._stragglers import StragglerWatch


@dataclasses.dataclass(frozen=True)
class Due:
    """What all ranks do now; the same on all of them."""

    commit: bool = False
    change: bool = False  # form a new membership
    leaves: bool = False  # of this rank: leave the job

    def __bool__(self) -> bool:
        return self.commit or self.change


class Pace:
    """Asks the ranks four times a second. All call it after the same steps.

    Args:
        commit_seconds: The time between commits.
    """

    def __init__(self, commit_seconds: float) -> None:
        self._commit_seconds = commit_seconds
        self._rhythm = Rhythm("elastic/pace")
        self._committed_at = time.monotonic()
        is_first = membership.is_elastic() and state.topology("fit").rank == 0
        self._stragglers = StragglerWatch() if is_first else None

    def note_commit(self) -> None:
        """Notes that a commit was made, so that the next one is due later."""
        self._committed_at = time.monotonic()

    def after_step(self) -> Due:
        """Says what is due after a step."""
        return self._ask() if self._rhythm.is_due() else Due()

    def after_epoch(self) -> Due:
        """Says what is due after an epoch; a commit always is."""
        return dataclasses.replace(self._ask(), commit=True)

    def _ask(self) -> Due:
        if self._stragglers is not None:
            self._stragglers.look()
        must_leave = membership.must_leave()
        seconds = time.monotonic() - self._committed_at
        commit, change = self._rhythm.ask(
            seconds >= self._commit_seconds,
            must_leave or membership.is_change_due(),
        )
        return Due(commit, change, must_leave and change)
