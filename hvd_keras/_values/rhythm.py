"""How often ranks ask each other whether something is due."""

from __future__ import annotations

import time

import numpy as np

from hvd_keras import _native
from hvd_keras._job import state
from hvd_keras.reduce_op import Max

# A question costs the ranks a small collective.
_ASK_SECONDS = 0.25
_MAX_STEPS = 10_000


class Rhythm:
    """Lets ranks ask four times a second, in each membership anew.

    All ranks make the same calls after the same steps.

    Args:
        name: The name of the collective.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._begin()

    def _begin(self) -> None:
        self._generation = state.generation()
        self._num_steps = 1  # from one question to the next
        self._num_done = 0  # since the last one
        self._asked_at: float | None = None  # not yet in this membership

    def is_due(self) -> bool:
        """Whether the ranks ask after this step; the same on all of them."""
        if self._generation != state.generation():
            self._begin()
        self._num_done += 1
        return self._num_done >= self._num_steps

    def ask(self, *mine: bool) -> list[bool]:
        """Returns for each answer whether a rank has said yes."""
        wanted = self._num_steps
        # Before the first question, no step was timed as a whole.
        if self._num_done > 0 and self._asked_at is not None:
            passed = time.monotonic() - self._asked_at
            seconds = max(passed / self._num_done, 1e-9)
            wanted = max(1, int(min(_ASK_SECONDS / seconds, _MAX_STEPS)))
        told = np.array([*mine, -wanted], np.int64)
        ((*found, negated),) = _native.core().allreduce(
            self._name, [told], int(Max)
        )
        self._num_steps, self._num_done = -int(negated), 0
        self._asked_at = time.monotonic()
        return [bool(each) for each in found]
