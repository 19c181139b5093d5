"""Allgather: every rank gets the ranks' tensors, one after the other."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_keras import _native
from hvd_keras.ops import _arguments, _errors, _gradients
from hvd_keras.ops._emit import emit
from hvd_keras.ops.reduce_op import Average


def allgather(tensor: Any, *, name: str | None = None) -> tf.Tensor:
    """Concatenates the ranks' tensors along the first dimension.

    The first dimension may differ by rank and may be 0; all others and the
    dtype must agree. Differentiable: the gradient is the average over the ranks
    of the upstream gradients, of which each rank takes the rows that it gave.
    (An average as in Horovod, hence 1/size of the derivative of the sum of the
    ranks' losses: what an averaging optimizer expects.)

    Args:
        tensor: Dense tensor with one dimension or more, or what converts to
            one: an array, a variable.
        name: Pairs this call across ranks. Defaults to the op's graph name, or
            in eager mode to a count of the nameless calls.

    Returns:
        Tensor of the dtype of `tensor`: first the rows of rank 0, then those of
        rank 1, and so on; equal on every rank.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on this rank.
        MismatchError: Ranks disagree on a dimension after the first or on the
            dtype.
        PeerLostError: A rank left before all had answered.
        StalledError: A rank did not come in time.

    Example, on 2 ranks:

    >>> hvd.allgather(tf.fill([hvd.rank() + 1], hvd.rank())).numpy()
    array([0, 1, 1], dtype=int32)
    """
    return gather(tensor, average=False, name=name)


def gather(tensor: Any, *, average: bool, name: str | None) -> tf.Tensor:
    """Returns the allgather; if `average`, its values divided by the size."""
    _arguments.check_name(name)
    tensor = _arguments.to_tensor(tensor, "tensor", name)
    if tensor.shape.rank == 0:
        raise _errors.invalid_argument(
            f"`tensor` must have a first dimension to gather along. Received: "
            f"a scalar of type {tensor.dtype.name} (tensor '{name or ''}')."
        )
    return emit("allgather", tensor, name=name, average=average)


@tf.RegisterGradient("HorovodAllgather")
def _allgather_gradient(
    op: tf.Operation, upstream: tf.Tensor
) -> list[tf.Tensor | None]:
    if op.get_attr("average"):
        raise _errors.invalid_argument(
            "An allgather must not average to have a gradient. Received: the "
            "gradient of an allreduce of `tf.IndexedSlices`."
        )
    name = _gradients.gradient_name(op)
    process_set_id = op.get_attr("process_set_id")
    averaged = emit(
        "allreduce",
        tf.convert_to_tensor(upstream),
        name=name,
        reduce_op=int(Average),
        process_set_id=process_set_id,
    )
    # The first dimensions, so that each rank knows where its rows begin.
    num_rows = emit(
        "allgather",
        tf.shape(op.inputs[0], out_type=tf.int64)[:1],
        name=None if name is None else tf.strings.join([name, "/rows"]),
        process_set_id=process_set_id,
    )
    rank = _native.core().rank()
    begin = tf.reduce_sum(num_rows[:rank])
    gradient = averaged[begin : begin + num_rows[rank]]
    gradient.set_shape(op.inputs[0].shape)
    return [gradient, None]
