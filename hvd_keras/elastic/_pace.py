"""How often ranks ask each other whether something is due."""

from __future__ import annotations

import dataclasses
import time

import numpy as np

from hvd_keras import _native
from hvd_keras._job import membership, state
from hvd_keras.elastic._stragglers import StragglerWatch
from hvd_keras.reduce_op import Max

# A question costs the ranks a small collective.
_ASK_SECONDS = 0.25
_MAX_STEPS = 10_000


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
        self._num_steps = 1  # from one question to the next
        self._num_done = 0  # since the last one
        self._asked_at = self._committed_at = time.monotonic()
        is_first = membership.is_elastic() and state.topology("fit").rank == 0
        self._stragglers = StragglerWatch() if is_first else None

    def note_commit(self) -> None:
        """Notes that a commit was made, so that the next one is due later."""
        self._committed_at = time.monotonic()

    def after_step(self) -> Due:
        """Says what is due after a step."""
        self._num_done += 1
        if self._num_done < self._num_steps:
            return Due()
        return self._ask()

    def after_epoch(self) -> Due:
        """Says what is due after an epoch; a commit always is."""
        return dataclasses.replace(self._ask(), commit=True)

    def _ask(self) -> Due:
        if self._stragglers is not None:
            self._stragglers.look()
        now = time.monotonic()
        wanted = self._num_steps
        if self._num_done > 0:
            seconds = (now - self._asked_at) / self._num_done
            wanted = int(min(_ASK_SECONDS / max(seconds, 1e-9), _MAX_STEPS))
        must_leave = membership.must_leave()
        is_late = now - self._committed_at >= self._commit_seconds
        is_due = must_leave or membership.is_change_due()
        mine = np.array([is_late, is_due, -max(1, wanted)], np.int64)
        ((commit, change, negated),) = _native.core().allreduce(
            "elastic/pace", [mine], int(Max)
        )
        self._num_steps, self._num_done = -int(negated), 0
        self._asked_at = time.monotonic()
        return Due(bool(commit), bool(change), bool(must_leave and change))
