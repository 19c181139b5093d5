"""Hooks into Keras for models that were made under `HvdStrategy`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_keras._gradients.distributed_class import unwrapped
from hvd_keras._gradients.reducing_optimizer import ReducingOptimizer
from hvd_keras._keras import strategy as private
from hvd_keras.ops.allgather import allgather
from hvd_keras.reduce_op import Sum


def install(
    distribute: Callable[..., Any], global_logs: Callable[[Any, Any, Any], Any]
) -> None:
    """Hooks into Keras.

    Args:
        distribute: `DistributedOptimizer`.
        global_logs: Returns the logs of all ranks. It gets a model, the
            function that returns this rank's logs, and that function's
            argument.
    """
    private.patch_compile(functools.partial(_distribute_optimizer, distribute))
    private.patch_saving()
    private.patch_logs(global_logs)
    private.patch_predictions(_gather)


def _distribute_optimizer(distribute: Callable[..., Any], model: Any) -> None:
    """Makes the model's optimizer sum gradients before it clips them.

    It sums because Keras has divided the loss by the number of replicas.
    """
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return
    inner = unwrapped(optimizer)
    is_reducing = isinstance(inner, ReducingOptimizer)
    if is_reducing and inner.hvd_settings.reduce.op != Sum:
        raise ValueError(
            "Under `hvd.HvdStrategy` a model must be compiled with a plain "
            "optimizer; the strategy makes it distributed. Received: "
            f"{optimizer.name!r}, which averages over the ranks by itself."
        )
    distribute(optimizer, op=Sum)


def _gather(outputs: Any) -> Any:
    """Returns the ranks' predictions for a global batch, in order of rows."""
    return tf.nest.map_structure(allgather, outputs)
