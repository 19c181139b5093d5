"""Collectives with the arguments of `horovod.tensorflow`.

Their gradients are Horovod's too: see docs/horovod.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_keras import _native, ops
from hvd_keras.compat._forwarding import forwarding
from hvd_keras.compat.basics import handle_average_backwards_compatibility
from hvd_keras.ops import _errors
from hvd_keras.ops._arguments import of as named
from hvd_keras.ops.topology import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Adasum, Average, Sum

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]


def _call(target: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Handles the arguments that our functions do not have."""
    device = arguments.pop("device_dense", "")
    sparse_device = arguments.pop("device_sparse", "")
    if isinstance(arguments.get("tensor"), tf.IndexedSlices):
        device = sparse_device  # members of a group share one device here
    for several in ("tensors", "variables"):
        if several in arguments:
            arguments[several] = list(arguments[several])
    if "average" in arguments:
        arguments["op"] = handle_average_backwards_compatibility(
            arguments["op"], arguments.pop("average")
        )
    if not device:
        return target(**arguments)
    with tf.device(device):
        return target(**arguments)


def _call_averaging(
    target: Callable[..., Any], arguments: dict[str, Any]
) -> Any:
    """Calls a collective that averages upstream gradients in Horovod.

    Ours sums them.
    """
    results = _call(target, arguments)
    size = _size_of(arguments["process_set"])
    return tf.nest.map_structure(
        lambda result: _with_gradient_times(result, 1 / size), results
    )


def _call_multiplying(
    target: Callable[..., Any], arguments: dict[str, Any]
) -> Any:
    """Calls a reducescatter, whose gradient Horovod multiplies by the size."""
    results = _call(target, arguments)
    if arguments["op"] not in (None, Average, Sum):
        return results
    size = _size_of(arguments["process_set"])
    return tf.nest.map_structure(
        lambda result: _with_gradient_times(result, size), results
    )


def _size_of(process_set: ProcessSet) -> int:
    return len(_native.core().process_set_ranks(process_set.process_set_id))


def _with_gradient_times(tensor: tf.Tensor, factor: float) -> tf.Tensor:
    if not tensor.dtype.is_floating or factor == 1:
        return tensor

    @tf.custom_gradient
    def multiplying(tensor: tf.Tensor) -> Any:
        return tf.identity(
            tensor
        ), lambda upstream: upstream * tf.cast(factor, upstream.dtype)

    return multiplying(tensor)


class AdasumError(_errors.InvalidArgumentError, tf.errors.UnknownError):
    """`Adasum` of integers: Horovod's backend raises an `UnknownError`."""


def _allreduce(tensor: Any, **options: Any) -> Any:
    (reduced,) = _reduced(
        [tensor], lambda t, how: [ops.allreduce(t[0], **how)], options
    )
    return reduced


def _grouped_allreduce(tensors: list[Any], **options: Any) -> list[Any]:
    if not tensors:
        return []
    return _reduced(
        tensors, lambda t, how: ops.grouped_allreduce(t, **how), options
    )


def _reduced(
    tensors: list[Any],
    reduce: Callable[[list[Any], dict[str, Any]], list[Any]],
    options: dict[str, Any],
) -> list[Any]:
    """Reduces integers as Horovod does."""
    op = options["op"]
    for tensor in tensors:
        if op == Adasum and not isinstance(tensor, tf.IndexedSlices):
            dtype = tf.convert_to_tensor(tensor).dtype
            if dtype.is_integer:
                raise AdasumError(
                    None,
                    None,
                    "An allreduce with Adasum must have a floating dtype. "
                    f"Received: {dtype.name}{named(options['name'])}.",
                )
    is_plain = options["prescale_factor"] == options["postscale_factor"] == 1
    if op in (None, Average) and is_plain:
        tensors = [_as_dividends(tensor) for tensor in tensors]
    return reduce(tensors, options)


def _as_dividends(tensor: Any) -> Any:
    """Returns slices of integers as floats whose average is Horovod's.

    Horovod divides by the number of ranks as `/` does, so the result has the
    dtype of TensorFlow's quotient: float64, of short integers float32. The
    average over the ranks divides.
    """
    if not isinstance(tensor, tf.IndexedSlices):
        return tensor
    values = tf.convert_to_tensor(tensor.values)
    if not values.dtype.is_integer:
        return tensor
    dtype = (values[:0] / values[:0]).dtype
    return tf.IndexedSlices(
        tf.cast(values, dtype), tensor.indices, tensor.dense_shape
    )


allreduce = forwarding(
    _allreduce,
    "tensor average device_dense device_sparse compression op prescale_factor "
    "postscale_factor name process_set ignore_name_scope",
    call=_call,
    name="allreduce",
    op=None,
)
grouped_allreduce = forwarding(
    _grouped_allreduce,
    "tensors average device_dense device_sparse compression op "
    "prescale_factor postscale_factor process_set ignore_name_scope name",
    call=_call,
    name="grouped_allreduce",
    op=None,
)
allgather = forwarding(
    ops.allgather,
    "tensor name ignore_name_scope process_set",
    call=_call_averaging,
)
grouped_allgather = forwarding(
    ops.grouped_allgather,
    "tensors name ignore_name_scope process_set",
    call=_call_averaging,
)
broadcast = forwarding(
    ops.broadcast,
    "tensor root_rank name ignore_name_scope process_set",
    call=_call_averaging,
)
broadcast_ = forwarding(
    ops.broadcast_, "variables root_rank name process_set", call=_call
)
alltoall = forwarding(
    ops.alltoall, "tensor splits name ignore_name_scope process_set"
)
reducescatter = forwarding(
    ops.reducescatter,
    "tensor device_dense compression op name process_set ignore_name_scope "
    "prescale_factor postscale_factor",
    call=_call_multiplying,
)
grouped_reducescatter = forwarding(
    ops.grouped_reducescatter,
    "tensors device_dense compression op process_set prescale_factor "
    "postscale_factor",
    call=_call_multiplying,
)
join = forwarding(ops.join, "", doc="`hvd_keras.join`, on all ranks.")
