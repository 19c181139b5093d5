"""The callback that logs how fast all ranks train."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np

from hvd_keras import _native, basics
from hvd_keras._keras.legacy import ForKeras3
from hvd_keras.callbacks.metric_average import num_samples_of


class ThroughputCallback(ForKeras3, keras.callbacks.Callback):
    """Adds the speed of the training, over all ranks, to the logs of epochs.

    `History` and the callbacks after this one see the speed: put it before
    `CSVLogger` and `TensorBoard`. The values are the same on all ranks:

    - `samples_per_second`: samples of all ranks, divided by the time of the
      slowest. Missing if Keras counts no samples: in your own `train_step`
      that tracks no loss.
    - `step_ms`: milliseconds a step, on the slowest rank.
    - `step_spread_ms`: the slowest rank's `step_ms` minus the fastest's.
    - `collectives_ms`: milliseconds a step in which a collective was in
      flight, waiting for other ranks or moving data, on the rank with the
      most. It includes computing that runs at the same time.
    - `collectives_per_step`, `reduced_mb_per_step`: the engine's collectives,
      after fusion, and their input in 10^6 bytes.

    The last three come from `hvd.stats()` and include what other callbacks
    send.

    An epoch is measured from its first batch to its last, without validation.
    The first epoch includes the tracing of the step. The callback looks at the
    model once an epoch, never in a batch. All ranks have the callback, or none.

    Example:

    >>> speed = hvd.callbacks.ThroughputCallback()
    >>> log = keras.callbacks.CSVLogger("log.csv")
    >>> model.fit(dataset, callbacks=[speed, log])
    """

    def __init__(self) -> None:
        super().__init__()
        self._began: float | None = None
        self._num_steps = 0
        self._counts: dict[str, int] = {}
        self._measured: np.ndarray[Any, Any] | None = None

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._began = None
        self._measured = None

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._began is None:
            self._began = time.perf_counter()
            self._counts = basics.stats()
        self._num_steps = batch + 1

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._measure()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._measure()
        measured, self._measured = self._measured, None
        if measured is None or logs is None:
            return
        (rows,) = _native.core().allgather(
            "ThroughputCallback", [measured[np.newaxis]]
        )
        seconds, steps, samples, collectives, num_bytes, pending = rows.T
        if samples.sum() > 0.0:
            logs["samples_per_second"] = float(samples.sum() / seconds.max())
        step_ms = 1e3 * seconds / steps
        logs["step_ms"] = float(step_ms.max())
        logs["step_spread_ms"] = float(step_ms.max() - step_ms.min())
        logs["collectives_ms"] = float((pending / steps).max() / 1e6)
        logs["collectives_per_step"] = float((collectives / steps).max())
        logs["reduced_mb_per_step"] = float((num_bytes / steps).max() / 1e6)

    def _measure(self) -> None:
        """Ends the measurement when the batches of the epoch are done."""
        if self._began is None:
            return
        seconds = time.perf_counter() - self._began
        self._began = None
        # The last batch announced begins an execution of several steps, or of
        # none if the data turn out to have ended.
        steps = self._num_steps + self.model.steps_per_execution - 1
        known = (self.params or {}).get("steps")
        if known is None and not self.model.stop_training:
            steps -= self.model.steps_per_execution
        steps = max(1, min(steps, known or steps))
        now = basics.stats()
        counted = [
            now[name] - self._counts[name]
            for name in ("num_collectives", "num_bytes", "pending_ns")
        ]
        self._measured = np.array(
            [seconds, steps, num_samples_of(self.model), *counted], np.float64
        )
