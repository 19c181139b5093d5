"""Grouped allreduce: many tensors, reduced as one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_keras.ops import _arguments, _errors, _gradients
from hvd_keras.ops._emit import emit
from hvd_keras.ops.allreduce import gather_slices, reduction_attributes
from hvd_keras.ops.reduce_op import Average, ReduceOp


def grouped_allreduce(
    tensors: Sequence[Any],
    op: ReduceOp = Average,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[tf.Tensor | tf.IndexedSlices]:
    """Reduces each of `tensors` over the ranks, all in one request.

    The ranks agree once for the whole group, and no member waits for another
    call. Members may differ in dtype and shape; every rank passes the same list
    of dtypes and shapes. Differentiable for `Average` and `Sum`: the gradient
    is a grouped allreduce of the members of floating dtype. Members that are
    `tf.IndexedSlices` are gathered one by one, as by `allreduce`.

    Args:
        tensors: What `allreduce` takes, one or more.
        op: How values combine, for all members.
        name: Pairs this call across ranks. Defaults to the op's graph name, or
            in eager mode to a count of the nameless calls.
        prescale_factor: Factor of the tensors before the reduction.
        postscale_factor: Factor of the results.

    Returns:
        A list as long as `tensors`: each member's reduction.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on this rank.
        MismatchError: Ranks disagree on the number of tensors, a shape, a
            dtype, `op` or a factor.
        PeerLostError: A rank left before all had answered.
        StalledError: A rank did not come in time.

    Example, on 2 ranks:

    >>> a, b = hvd.grouped_allreduce([tf.ones([2]), tf.constant(3)], hvd.Sum)
    >>> a.numpy(), b.numpy()
    (array([2., 2.], dtype=float32), 6)
    """
    attributes = reduction_attributes(
        op, prescale_factor, postscale_factor, name
    )
    members = _check_members(tensors, name)
    factor = float(prescale_factor) * float(postscale_factor)
    results: dict[int, tf.Tensor | tf.IndexedSlices] = {}
    dense: dict[int, tf.Tensor] = {}
    for i, member in enumerate(members):
        if isinstance(member, tf.IndexedSlices):
            results[i] = gather_slices(
                member, op, factor, name=f"{name}/{i}" if name else None
            )
        else:
            dense[i] = _arguments.to_tensor(member, f"tensors[{i}]", name)
            _arguments.check_dtype(dense[i], op, name)
    if dense:
        reduced = emit(
            "grouped_allreduce", list(dense.values()), name=name, **attributes
        )
        results.update(zip(dense, reduced, strict=True))
    return [results[i] for i in range(len(members))]


def _check_members(tensors: Sequence[Any], name: str | None) -> list[Any]:
    where = f" (tensor '{name}')" if name else ""
    is_list = isinstance(tensors, list | tuple)
    if not is_list or not tensors:
        raise _errors.invalid_argument(
            f"`tensors` must be a list of one or more tensors. Received: "
            f"{'an empty list' if is_list else type(tensors).__name__}"
            f"{where}."
        )
    for i, tensor in enumerate(tensors):
        if tensor is None:
            raise _errors.invalid_argument(
                f"`tensors` must hold no None. Received: None at index {i} of "
                f"{len(tensors)}{where}. A variable that the loss does not "
                f"depend on has no gradient: leave it out on every rank."
            )
    return list(tensors)


@tf.RegisterGradient("HorovodGroupedAllreduce")
def _grouped_allreduce_gradient(
    op: tf.Operation, *upstreams: tf.Tensor | None
) -> list[tf.Tensor | None]:
    # Every rank must pass the same list, so that it may depend on dtypes alone
    # and not on which outputs this rank's loss uses.
    members = [i for i, out in enumerate(op.outputs) if out.dtype.is_floating]
    gradients: list[tf.Tensor | None] = [None] * len(op.inputs)
    if not members:
        return gradients
    reduced = emit(
        "grouped_allreduce",
        [
            tf.zeros_like(op.outputs[i])
            if upstreams[i] is None
            else tf.convert_to_tensor(upstreams[i])
            for i in members
        ],
        name=_gradients.gradient_name(op),
        reduce_op=int(_gradients.differentiable_reduce_op(op)),
        prescale_factor=op.get_attr("prescale_factor"),
        postscale_factor=op.get_attr("postscale_factor"),
        process_set_id=op.get_attr("process_set_id"),
    )
    for i, gradient in zip(members, reduced, strict=True):
        gradients[i] = gradient
    return gradients
