"""Allreduce: every rank gets the reduction of the ranks' tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_keras.ops import _arguments, _errors, _gradients
from hvd_keras.ops._emit import emit
from hvd_keras.ops.allgather import gather
from hvd_keras.ops.reduce_op import Average, ReduceOp, Sum


def allreduce(
    tensor: Any,
    op: ReduceOp = Average,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> tf.Tensor | tf.IndexedSlices:
    """Reduces `tensor` over the ranks; each gets the result.

    Every rank calls this with the same `name`, shape and dtype, in any order.
    With one rank it returns `tensor`, scaled. Differentiable for `Average` and
    `Sum`: the gradient is an allreduce with the same `op` and factors.

    A `tf.IndexedSlices` (the gradient of an embedding) is not reduced but
    gathered: the result holds the slices of all ranks, those with one index
    unmerged, and for `Average` divided by the size.

    Args:
        tensor: Dense tensor of any shape and any floating, integer or bool
            dtype, or what converts to one: a number, an array, a variable. Or
            a `tf.IndexedSlices`, for `Average` and `Sum`.
        op: How values combine: `Average`, `Sum`, `Min`, `Max` or `Product`;
            for bool `Min` (all) or `Max` (any). An `Average` of integers is
            rounded towards zero.
        name: Pairs this call across ranks. Defaults to the op's graph name, or
            in eager mode to a count of the nameless calls.
        prescale_factor: Factor of the tensor before the reduction.
        postscale_factor: Factor of the result.

    Returns:
        Tensor of the shape and dtype of `tensor`, equal on every rank.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on this rank.
        MismatchError: Ranks disagree on shape, dtype, `op` or a factor.
        PeerLostError: A rank left before all had answered.
        StalledError: A rank did not come in time.

    Example, on 2 ranks:

    >>> hvd.allreduce(tf.constant([1.0, 2.0]) * (hvd.rank() + 1)).numpy()
    array([1.5, 3. ], dtype=float32)
    """
    attributes = reduction_attributes(
        op, prescale_factor, postscale_factor, name
    )
    if isinstance(tensor, tf.IndexedSlices):
        factor = float(prescale_factor) * float(postscale_factor)
        return gather_slices(tensor, op, factor, name=name)
    tensor = _arguments.to_tensor(tensor, "tensor", name)
    _arguments.check_dtype(tensor, op, name)
    return emit("allreduce", tensor, name=name, **attributes)


def reduction_attributes(
    op: ReduceOp,
    prescale_factor: float,
    postscale_factor: float,
    name: str | None,
) -> dict[str, Any]:
    """Returns the attributes of an allreduce; raises if an argument is bad."""
    _arguments.check_name(name)
    return {
        "reduce_op": int(_arguments.to_reduce_op(op, name)),
        "prescale_factor": _arguments.to_factor(
            prescale_factor, "prescale_factor", name
        ),
        "postscale_factor": _arguments.to_factor(
            postscale_factor, "postscale_factor", name
        ),
    }


def gather_slices(
    slices: tf.IndexedSlices,
    op: ReduceOp,
    factor: float,
    *,
    name: str | None,
) -> tf.IndexedSlices:
    """Returns the slices of all ranks, as an allreduce of `slices`."""
    if op not in (Average, Sum):
        raise _errors.invalid_argument(
            f"An allreduce of `tf.IndexedSlices` must use Average or Sum. "
            f"Received: op={ReduceOp(op).name} (tensor '{name or ''}')."
        )
    values = slices.values
    if factor != 1.0:
        values = values * tf.cast(factor, values.dtype)
    return tf.IndexedSlices(
        gather(
            values,
            average=op == Average,
            name=f"{name}/values" if name else None,
        ),
        gather(
            slices.indices,
            average=False,
            name=f"{name}/indices" if name else None,
        ),
        dense_shape=slices.dense_shape,
    )


@tf.RegisterGradient("HorovodAllreduce")
def _allreduce_gradient(
    op: tf.Operation, upstream: tf.Tensor
) -> list[tf.Tensor | None]:
    gradient = emit(
        "allreduce",
        tf.convert_to_tensor(upstream),
        name=_gradients.gradient_name(op),
        reduce_op=int(_gradients.differentiable_reduce_op(op)),
        prescale_factor=op.get_attr("prescale_factor"),
        postscale_factor=op.get_attr("postscale_factor"),
        process_set_id=op.get_attr("process_set_id"),
    )
    return [gradient, None]
