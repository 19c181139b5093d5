"""Makes all ranks stop after the same step when one of them must stop."""

from __future__ import annotations

import time

import numpy as np

from hvd_keras import _native
from hvd_keras._job import preemption
from hvd_keras._keras import calls as keras_calls
from hvd_keras.reduce_op import Max

# How often the ranks ask each other: a question costs them a small collective.
_ASK_SECONDS = 0.25
_MAX_STEPS = 10_000


class Preemption:
    """Looks for a notice on all ranks. All methods but `end` are collective."""

    def __init__(self) -> None:
        self._watch = preemption.Watch(keras_calls.is_in_fit)
        self._num_steps = 1  # from one question to the next
        self._num_done = 0  # since the last one
        self._asked_at = time.monotonic()

    def begin(self) -> None:
        """Looks from now on."""
        self._watch.begin()
        self._asked_at = time.monotonic()

    def end(self) -> None:
        """Looks no more."""
        self._watch.end()

    def must_stop(self, *, is_epoch_end: bool = False) -> bool:
        """Whether all ranks must stop now. Call it after each step and epoch.

        The ranks ask each other every quarter of a second, and after each
        epoch.
        """
        if not is_epoch_end:
            self._num_done += 1
            if self._num_done < self._num_steps:
                return False
        now = time.monotonic()
        wanted = self._num_steps
        if self._num_done > 0:
            seconds = (now - self._asked_at) / self._num_done
            wanted = int(min(_ASK_SECONDS / max(seconds, 1e-9), _MAX_STEPS))
        mine = np.array([self._watch.has_come, -max(1, wanted)], np.int64)
        ((stops, negated),) = _native.core().allreduce(
            "BackupAndRestore/preemption", [mine], int(Max)
        )
        self._num_steps, self._num_done = -int(negated), 0
        self._asked_at = time.monotonic()
        return bool(stops)
