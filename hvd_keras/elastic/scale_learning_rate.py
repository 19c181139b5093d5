"""The callback that scales the learning rate with the number of ranks."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras import basics, objects
from hvd_keras._gradients.distributed_class import unwrapped
from hvd_keras._keras.legacy import ForKeras3


class ScaleLearningRate(ForKeras3, keras.callbacks.Callback):
    """Keeps the learning rate in proportion to the number of ranks.

    Without it the rate stays as it is when ranks leave or come. The gradient is
    then the mean over fewer or more ranks, so over a smaller or larger batch.

    The rate that `fit` begins with is for the number of ranks of that time.
    Other callbacks that set the rate must take `hvd.size()` into account
    themselves.

    Args:
        power: The rate changes by the ratio of the sizes to this power: 1.0,
            or 0.5 for optimizers such as Adam.

    Raises:
        TypeError: From `fit`: the learning rate is a schedule or a function.

    Example:

    >>> callbacks = [hvd.elastic.Elastic(), hvd.elastic.ScaleLearningRate()]
    >>> model.fit(data, callbacks=callbacks)
    """

    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        self.power = power
        # The number of ranks that the rate is for; a commit holds it.
        self.size: int | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        rate = unwrapped(self.model.optimizer).learning_rate
        if not isinstance(rate, keras.Variable):
            raise TypeError(
                "ScaleLearningRate must have an optimizer whose learning rate "
                f"is a number. Received: {type(self.model.optimizer).__name__} "
                "with a schedule or a function."
            )

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        # A change ends `fit`; so an epoch begins with the new ranks.
        size = basics.size()
        if self.size is not None and self.size != size:
            optimizer = unwrapped(self.model.optimizer)
            rate = float(optimizer.learning_rate.numpy())
            rate *= (size / self.size) ** self.power
            optimizer.learning_rate = objects.broadcast_object(
                rate, 0, name="ScaleLearningRate"
            )
        self.size = size
