"""Keras callbacks with the arguments of `horovod.tensorflow.keras`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from hvd_keras import _native, callbacks
from hvd_keras._common.ignored import ignoring
from hvd_keras._keras import calls as keras_calls
from hvd_keras.reduce_op import Average

__all__ = [
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]

# It takes Horovod's arguments; `filepath` may be set later, as there.
BestModelCheckpoint = callbacks.BestModelCheckpoint


class BroadcastGlobalVariablesCallback(
    callbacks.BroadcastGlobalVariablesCallback
):
    """`hvd_keras.callbacks.BroadcastGlobalVariablesCallback`.

    Args:
        root_rank: The rank whose state all get.
        device: No effect, because this goes through host memory.
        local_variables: Variables of the model that are not broadcast.
    """

    @ignoring("horovod.keras.BroadcastGlobalVariablesCallback", "device")
    def __init__(
        self,
        root_rank: int,
        device: str = "",
        local_variables: Iterable[Any] | None = None,
    ) -> None:
        del device
        super().__init__(root_rank, local_variables=local_variables)


class MetricAverageCallback(callbacks.MetricAverageCallback):
    """`hvd_keras.callbacks.MetricAverageCallback`, in and out of `fit`.

    Outside of `fit`, `on_epoch_end(epoch, logs)` averages `logs` itself.

    Args:
        device: No effect, because this goes through host memory.
    """

    @ignoring("horovod.keras.MetricAverageCallback", "device")
    def __init__(self, device: str = "") -> None:
        del device
        super().__init__()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        super().on_epoch_end(epoch, logs)
        if not logs or keras_calls.running_calls():
            return
        keys = sorted(logs)
        values = [np.asarray(logs[key], np.float64) for key in keys]
        averages = _native.core().allreduce(
            "MetricAverageCallback/logs", values, int(Average)
        )
        for key, average in zip(keys, averages, strict=True):
            logs[key] = average if np.ndim(average) else float(average)


class LearningRateScheduleCallback(callbacks.LearningRateScheduleCallback):
    """`hvd_keras.callbacks.LearningRateScheduleCallback`; logs `lr` too."""

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__(
            initial_lr,
            multiplier,
            start_epoch=start_epoch,
            end_epoch=end_epoch,
            staircase=staircase,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        super().on_epoch_end(epoch, logs)
        if logs is not None:
            logs["lr"] = self.rate()


class LearningRateWarmupCallback(callbacks.LearningRateWarmupCallback):
    """`hvd_keras.callbacks.LearningRateWarmupCallback`; logs `lr` too."""

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            initial_lr,
            warmup_epochs,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
            verbose=verbose,
        )

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        super().on_epoch_end(epoch, logs)
        if logs is not None:
            logs["lr"] = self.rate()
