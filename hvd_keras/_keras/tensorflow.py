"""The private names of Keras that hvd_keras uses only on TensorFlow.

| Name | Used to |
|---|---|
| `Optimizer._all_reduce_sum_gradients` | sum gradients only once |
| `BatchNormalization._moments` | normalize with the batches of all ranks |
| `BatchNormalization._reduction_axes` | the same |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from hvd_keras._keras.lookup import require


def check_backend() -> None:
    """Raises ImportError unless Keras runs on TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            "This part of hvd_keras (layers, the strategy, gradient tapes) "
            "needs Keras on the TensorFlow backend. Received: "
            f"keras.backend.backend()={keras.backend.backend()!r}. Set "
            "KERAS_BACKEND=tensorflow."
        )


def check_names() -> None:
    """Raises ImportError if a private name is gone or has changed."""
    require(
        keras.optimizers.Optimizer,
        "_all_reduce_sum_gradients",
        ["self", "grads_and_vars"],
    )
    require(
        keras.layers.BatchNormalization, "_moments", ["self", "inputs", "mask"]
    )


Moments = Any  # a pair of tensors; None: those of this rank alone


class BatchNormalization(keras.layers.BatchNormalization):
    """Base of a layer that defines `hvd_moments`."""

    def hvd_moments(self, inputs: Any, mask: Any, axes: list[int]) -> Moments:
        raise NotImplementedError

    def _moments(self, inputs: Any, mask: Any) -> Any:
        axes = require(self, "_reduction_axes")
        moments = self.hvd_moments(inputs, mask, axes)
        if moments is None:
            return super()._moments(inputs, mask)
        return moments


def patch_synchronized_moments(
    moments: Callable[[Any, Any, Any, list[int]], Moments],
) -> None:
    """Makes `BatchNormalization(synchronized=True)` call `moments`.

    `moments` gets the layer, its inputs, their mask and the axes to reduce. It
    is not called if another `tf.distribute.Strategy` is in scope. A second call
    of this function does nothing.
    """
    owner = keras.layers.BatchNormalization
    original = owner._moments
    if getattr(original, "_hvd_wrapped", False):
        return

    def _moments(self: Any, inputs: Any, mask: Any) -> Any:
        found = None
        strategy = tf.distribute.get_strategy()
        is_free = not tf.distribute.has_strategy() or is_ours(strategy)
        if self.synchronized and is_free:
            axes = require(self, "_reduction_axes")
            found = moments(self, inputs, mask, axes)
        return original(self, inputs, mask) if found is None else found

    _moments._hvd_wrapped = True  # type: ignore[attr-defined]
    owner._moments = _moments


def is_ours(strategy: Any) -> bool:
    """Whether a `tf.distribute.Strategy` is an `HvdStrategy`."""
    return getattr(strategy.extended, "hvd_is_ours", False)


def is_in_our_strategy() -> bool:
    """Whether an `HvdStrategy` is in scope."""
    return is_ours(tf.distribute.get_strategy())


check_backend()
check_names()
