"""Makes all ranks stop after the same step when one of them must stop."""

from __future__ import annotations

from hvd_keras._job import preemption
from hvd_keras._keras import calls as keras_calls
from hvd_keras._values.rhythm import Rhythm


class Preemption:
    """Looks for a notice on all ranks. All methods but `end` are collective."""

    def __init__(self) -> None:
        self._watch = preemption.Watch(keras_calls.is_in_fit)

    def begin(self) -> None:
        """Looks from now on."""
        self._watch.begin()
        self._rhythm = Rhythm("BackupAndRestore/preemption")

    def end(self) -> None:
        """Looks no more."""
        self._watch.end()

    def must_stop(self, *, is_epoch_end: bool = False) -> bool:
        """Whether all ranks must stop now. Call it after each step and epoch.

        The ranks ask each other every quarter of a second, and after each
        epoch.
        """
        if not is_epoch_end and not self._rhythm.is_due():
            return False
        (stops,) = self._rhythm.ask(self._watch.has_come)
        return stops
