"""The callback that logs how fast all ranks train."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_keras import _native
from hvd_keras.callbacks._epoch_clock import Epoch, EpochMeter
from hvd_keras.callbacks.metric_average import num_samples_of


class ThroughputCallback(EpochMeter):
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

    def measured(self, epoch: Epoch) -> Any:
        counted = [
            epoch.counts[name]
            for name in ("num_collectives", "num_bytes", "pending_ns")
        ]
        return np.array(
            [epoch.seconds, epoch.steps, num_samples_of(self.model), *counted],
            np.float64,
        )

    def log_measured(self, measured: Any, logs: dict[str, Any]) -> None:
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
