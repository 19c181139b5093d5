"""The callback that raises the learning rate in the first epochs."""

from __future__ import annotations

from typing import Any

from hvd_keras import basics
from hvd_keras.callbacks.learning_rate_schedule import (
    LearningRateScheduleCallback,
)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the rate from that of one rank to that of all ranks.

    With world size N the batch is N times larger. It takes a rate that is N
    times higher, but not from the start (Goyal et al.,
    https://arxiv.org/abs/1706.02677, section 2.2). The rate begins near
    `initial_lr / N` and rises linearly with every batch. It reaches
    `initial_lr` in the last batch of `warmup_epochs`. From then on, other
    callbacks may change it.

    Args:
        initial_lr: The rate to reach: the rate for one rank, times N.
        warmup_epochs: Number of epochs in which the rate rises.
        momentum_correction: Whether momentum buffers follow the rate.
        steps_per_epoch: Batches in an epoch. Defaults to what `fit` knows.
        verbose: With 1, rank 0 prints the final rate.
        start_multiplier: The rate begins at this fraction of `initial_lr`.
            Defaults to 1 / N. Set it if the global batch does not grow with N:
            then the rates are the same for any N.

    Example:

    >>> rate = 0.001 * hvd.size()
    >>> callbacks = [hvd.callbacks.LearningRateWarmupCallback(rate, 3)]
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        *,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
        start_multiplier: float | None = None,
    ) -> None:
        super().__init__(
            initial_lr,
            self._warmup,
            start_epoch=0,
            end_epoch=warmup_epochs,
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.warmup_epochs = warmup_epochs
        self.verbose = verbose
        self.start_multiplier = start_multiplier

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        super().on_epoch_end(epoch, logs)
        if epoch + 1 != self.end_epoch:
            return
        # With `steps_per_execution`, the last batch seen here was not the last
        # of the epoch, and the rate is still below its aim.
        self.set_rate(self.initial_lr)
        if self.verbose and basics.rank() == 0:
            print(
                f"Epoch {epoch + 1}: the learning rate has risen to "
                f"{self.initial_lr:g}.",
                flush=True,
            )

    def _warmup(self, epoch: float) -> float:
        # At the end of this batch. With 1 / N this is Horovod's formula,
        # (epoch * (N - 1) / warmup_epochs + 1) / N.
        epoch += 1.0 / (self._num_steps() or 1)
        start = self.start_multiplier
        if start is None:
            start = 1.0 / basics.size_of_job()
        return start + (1.0 - start) * epoch / self.warmup_epochs
