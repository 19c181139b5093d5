"""The functions that `horovod.tensorflow.keras` and `horovod.keras` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from hvd_keras.compat import ops
from hvd_keras.compat._forwarding import forwarding
from hvd_keras.compat.functions import broadcast_global_variables
from hvd_keras.compression import Compression
from hvd_keras.saving import load_model as load_distributed_model

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "load_model",
    "reducescatter",
]


def _call(target: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    tensor = tf.convert_to_tensor(arguments.pop("value"))
    return target(tensor, **arguments)


allreduce = forwarding(
    ops.allreduce,
    "value name average prescale_factor postscale_factor op compression",
    call=_call,
    doc="Reduces a number, an array or a tensor over all ranks.",
    op=None,
)
allgather = forwarding(
    ops.allgather,
    "value name",
    call=_call,
    doc="Concatenates the arrays of all ranks.",
)
broadcast = forwarding(
    ops.broadcast,
    "value root_rank name",
    call=_call,
    doc="Returns the array of `root_rank`, on every rank.",
)
reducescatter = forwarding(
    ops.reducescatter,
    "value name op",
    call=_call,
    doc="Reduces the arrays of all ranks; each gets its part of the rows.",
)


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: dict[str, Any] | None = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> keras.Model:
    """Loads a model and makes its optimizer distributed.

    Args:
        filepath: A file that `model.save` has written.
        custom_optimizers: Classes of optimizers that Keras does not know.
        custom_objects: Other classes and functions that it does not know.
        compression: The form in which gradients travel.
        legacy_opts: Must be False, because Keras 3 has no legacy optimizers.
    """
    if legacy_opts:
        raise NotImplementedError(
            "`legacy_opts` must be False: Keras 3 has no legacy optimizers. "
            f"Received: legacy_opts={legacy_opts!r}."
        )
    known = {one.__name__: one for one in custom_optimizers or ()}
    return load_distributed_model(
        filepath, {**known, **(custom_objects or {})}, compression=compression
    )
