"""The callback that multiplies the learning rate in a range of epochs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._gradients.distributed_class import unwrapped
from hvd_keras._keras import names as private
from hvd_keras._keras.legacy import ForKeras3


class LearningRateScheduleCallback(ForKeras3, keras.callbacks.Callback):
    """Sets the learning rate to `initial_lr * multiplier(epoch)`.

    It acts in the epochs from `start_epoch` up to, not including, `end_epoch`.
    Several callbacks with ranges that follow each other make a schedule. It
    logs the rate of an epoch as `learning_rate`.

    Momentum buffers of SGD and RMSprop contain the rate. A new rate would act
    only when the momentum of the old rate has died away. So the callback
    multiplies the buffers by new rate / old rate (Goyal et al.,
    https://arxiv.org/abs/1706.02677, section 2.1). The buffers of Adam and its
    kin do not contain the rate.

    Args:
        initial_lr: The rate that is multiplied.
        multiplier: A function of the epoch, or a number m, which stands for
            `m ** (epoch - start_epoch)`.
        start_epoch: The first epoch in which the callback acts.
        end_epoch: The first epoch in which it no longer acts; None: it always
            acts.
        staircase: Whether the rate changes once an epoch. Otherwise it changes
            with each batch (with `steps_per_execution=n`, with every n-th
            batch), and `multiplier` gets fractions of epochs.
        momentum_correction: Whether momentum buffers follow the rate.
        steps_per_epoch: Batches in an epoch. Defaults to what `fit` knows. It
            must be given if `fit` does not know it and `staircase` is False.

    Raises:
        ValueError: `initial_lr` is None. From `fit`: the steps per epoch are
            needed but unknown.
        TypeError: From `fit`: the optimizer has a `LearningRateSchedule`.

    Example, a tenth from epoch 30 and a hundredth from epoch 60:

    >>> schedule = hvd.callbacks.LearningRateScheduleCallback
    >>> callbacks = [
    ...     schedule(0.1, multiplier=1e-1, start_epoch=30, end_epoch=31),
    ...     schedule(0.1, lambda epoch: 1e-2, start_epoch=60),
    ... ]
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        *,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError(
                "`initial_lr` must be the rate that is multiplied. Received: "
                "initial_lr=None."
            )
        self.initial_lr = float(initial_lr)
        self.start_epoch = start_epoch
        self.end_epoch = end_epoch
        self.staircase = staircase
        self.momentum_correction = momentum_correction
        self.steps_per_epoch = steps_per_epoch
        self.multiplier = _as_function(multiplier, start_epoch)
        self._epoch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        rate = unwrapped(self.model.optimizer).learning_rate
        if not isinstance(rate, keras.Variable):
            raise TypeError(
                f"{type(self).__name__} must have an optimizer whose learning "
                "rate is a number. Received: "
                f"{type(self.model.optimizer).__name__} with a schedule or a "
                "function; give it a number, or remove the callback "
                "(`hvd.Warmup` is a schedule that warms up)."
            )
        if not self.staircase and self._num_steps() is None:
            raise ValueError(
                "`steps_per_epoch` must be given if `fit` does not know "
                f"it. Received: steps_per_epoch=None for {type(self).__name__}"
                " and data of unknown length."
            )

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._epoch = epoch

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if not self._acts_in(self._epoch) or (self.staircase and batch > 0):
            return
        epoch: float = self._epoch
        if not self.staircase:
            epoch += batch / (self._num_steps() or 1)
        self.set_rate(self.initial_lr * self.multiplier(epoch))

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if logs is not None:
            logs["learning_rate"] = self.rate()

    def rate(self) -> float:
        """Returns the current learning rate."""
        return float(self.model.optimizer.learning_rate.numpy())

    def set_rate(self, rate: float) -> None:
        """Sets the learning rate and scales the momentum with it."""
        old_rate = self.rate()
        self.model.optimizer.learning_rate = rate
        new_rate = self.rate()  # as rounded to the variable's dtype
        if not self.momentum_correction or new_rate == old_rate:
            return
        if old_rate == 0.0:
            return
        optimizer = unwrapped(self.model.optimizer)
        for momentum in private.rate_scaled_momentums_of(optimizer):
            momentum.assign(momentum * (new_rate / old_rate))

    def _acts_in(self, epoch: int) -> bool:
        if epoch < self.start_epoch:
            return False
        return self.end_epoch is None or epoch < self.end_epoch

    def _num_steps(self) -> int | None:
        return self.steps_per_epoch or (self.params or {}).get("steps")


def _as_function(
    multiplier: float | Callable[[float], float], start_epoch: int
) -> Callable[[float], float]:
    if callable(multiplier):
        return multiplier
    base = float(multiplier)
    return lambda epoch: base ** (epoch - start_epoch)
