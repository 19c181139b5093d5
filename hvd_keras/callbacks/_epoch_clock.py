"""Measures an epoch: its time, its steps and what the engine did."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import keras

from hvd_keras import basics
from hvd_keras._keras.legacy import ForKeras3


@dataclasses.dataclass(frozen=True)
class Epoch:
    """What a rank did from the first batch of an epoch to the last."""

    seconds: float
    steps: int
    counts: dict[str, int]  # see `hvd.stats()`


class EpochMeter(ForKeras3, keras.callbacks.Callback):
    """Measures each epoch from its first batch to its last.

    Validation does not count. A subclass puts the figures into the logs.
    """

    def __init__(self) -> None:
        super().__init__()
        self._clock = _EpochClock()
        self._measured: Any = None

    def measured(self, epoch: Epoch) -> Any:
        """Returns what `log_measured` gets, when the batches are done."""
        return epoch

    def log_measured(self, measured: Any, logs: dict[str, Any]) -> None:
        """Puts the figures into the logs of the epoch."""
        raise NotImplementedError

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._clock.reset()

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._clock.begin_batch(batch)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._measure()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._measure()
        measured, self._measured = self._measured, None
        if measured is not None and logs is not None:
            self.log_measured(measured, logs)

    def _measure(self) -> None:
        epoch = self._clock.end(self.model, self.params)
        if epoch is not None:
            self._measured = self.measured(epoch)


class _EpochClock:
    """Measures the epochs of a `fit`, one after the other."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._num_steps = 0
        self._counts: dict[str, int] = {}

    def reset(self) -> None:
        """Begins anew with the next batch."""
        self._began = None

    def begin_batch(self, batch: int) -> None:
        """Notes that a batch of this number begins."""
        if self._began is None:
            self._began = time.perf_counter()
            self._counts = basics.stats()
        self._num_steps = batch + 1

    def end(
        self, model: keras.Model, params: dict[str, Any] | None
    ) -> Epoch | None:
        """Returns the epoch, once; None if it had no batch.

        Args:
            model: The model that trains.
            params: Those of the callback.
        """
        if self._began is None:
            return None
        seconds = time.perf_counter() - self._began
        self._began = None
        # The last batch announced begins an execution of several steps, or of
        # none if the data turn out to have ended.
        steps = self._num_steps + model.steps_per_execution - 1
        known = (params or {}).get("steps")
        if known is None and not model.stop_training:
            steps -= model.steps_per_execution
        steps = max(1, min(steps, known or steps))
        counts = {
            name: count - self._counts[name]
            for name, count in basics.stats().items()
        }
        return Epoch(seconds, steps, counts)
