"""What `horovod.tensorflow.keras` and `horovod.keras` have in common."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from hvd_keras.compat import ops
from hvd_keras.compat.functions import broadcast_global_variables
from hvd_keras.compression import Compression
from hvd_keras.reduce_op import Average, ReduceOp
from hvd_keras.saving import load_model as load_distributed_model

__all__ = [
    "allgather",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "load_model",
    "reducescatter",
]


def allreduce(
    value: Any,
    name: str | None = None,
    average: bool | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    op: ReduceOp | None = None,
    compression: Any = Compression.none,
) -> Any:
    """Reduces a number, an array or a tensor over all ranks."""
    return ops.allreduce(
        tf.convert_to_tensor(value),
        average,
        compression=compression,
        op=op,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        name=name,
    )


def allgather(value: Any, name: str | None = None) -> Any:
    """Concatenates the arrays of all ranks."""
    return ops.allgather(tf.convert_to_tensor(value), name)


def broadcast(value: Any, root_rank: int, name: str | None = None) -> Any:
    """Returns the array of `root_rank`, on every rank."""
    return ops.broadcast(tf.convert_to_tensor(value), root_rank, name)


def reducescatter(
    value: Any, name: str | None = None, op: ReduceOp = Average
) -> Any:
    """Reduces the arrays of all ranks; each gets its part of the rows."""
    return ops.reducescatter(tf.convert_to_tensor(value), op=op, name=name)


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
        compression: What gradients travel as.
        legacy_opts: False: Keras 3 has no legacy optimizers.
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
