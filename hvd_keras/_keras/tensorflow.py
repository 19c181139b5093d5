"""The private names of Keras that hvd_keras uses only on TensorFlow.

| Name | Used to |
|---|---|
| `Optimizer._all_reduce_sum_gradients` | sum gradients only once |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from hvd_keras._common.replacements import replace
from hvd_keras._keras.lookup import require
from hvd_keras._keras.steps import running_batch


def check_backend() -> None:
    """Raises ImportError unless Keras runs on TensorFlow."""
    if keras.backend.backend() != "tensorflow":
        raise ImportError(
            "This part of hvd_keras (the strategy, gradient tapes) "
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


def install() -> None:
    """Hooks into the tapes that a `train_step` of the user's uses."""
    replace(tf.GradientTape, "gradient", _summing)


def _summing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Notes gradients, and makes those of a vector sums over all ranks' rows.

    TensorFlow differentiates the sum of its entries.
    """

    def gradient(
        self: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        *args: Any,
        **kw: Any,
    ) -> Any:
        batch = running_batch()
        if batch is None or not all(
            hasattr(source, "assign") for source in tf.nest.flatten(sources)
        ):
            return original(
                self, target, sources, output_gradients, *args, **kw
            )
        if (
            not batch.has_weight
            and output_gradients is None
            and isinstance(target, tf.Tensor)
        ):
            if target.shape.rank:
                output_gradients = batch.summed(tf.ones_like(target))
            else:
                batch.look_for_sums(target)
        results = original(self, target, sources, output_gradients, *args, **kw)
        found = tf.nest.flatten(results)
        batch.gradients += [each for each in found if each is not None]
        return results

    return gradient


def is_ours(strategy: Any) -> bool:
    """Whether a `tf.distribute.Strategy` is an `HvdStrategy`."""
    return getattr(strategy.extended, "hvd_is_ours", False)


def is_in_other_strategy() -> bool:
    """Whether a `tf.distribute.Strategy` that is not ours is in scope."""
    strategy = tf.distribute.get_strategy()
    return tf.distribute.has_strategy() and not is_ours(strategy)


def is_in_our_strategy() -> bool:
    """Whether an `HvdStrategy` is in scope."""
    return is_ours(tf.distribute.get_strategy())


check_backend()
check_names()
