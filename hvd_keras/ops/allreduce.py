"""Allreduce: every rank gets the reduction of the ranks' tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_keras._common import training_signs
from hvd_keras._common.autograph import as_it_is
from hvd_keras.compression import (
    Compression,
    Compressor,
    to_compressor,
    wire_format_of,
)
from hvd_keras.ops import _arguments, _gradients
from hvd_keras.ops._emit import emit, refuses
from hvd_keras.ops._slices import Reduction, allreduce_slices
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import ReduceOp, Sum


@as_it_is
@refuses("allreduce")
def allreduce(
    tensor: Any,
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: type[Compressor] | Compressor = Compression.none,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    **deprecated: Any,
) -> tf.Tensor | tf.IndexedSlices:
    """Reduces `tensor` over the ranks of a process set; each gets the result.

    Every rank calls this with the same `name`, shape and dtype, in any order.
    With one rank it returns `tensor`, scaled.

    Differentiable except for `Adasum`: the gradient is the derivative of the
    sum of the ranks' losses. For `Average` and `Sum` it is an allreduce with
    the same `op` and factors. For `Min` and `Max` the ranks that hold the
    extremum share the sum of the upstream gradients equally. For `Product`
    that sum is multiplied by the product of the other ranks' values.

    A `tf.IndexedSlices` (the gradient of an embedding) stays one: the result
    holds each index of any rank once. The ranks gather the slices. If there
    are twice as many slices as different indices, it moves fewer bytes to
    allreduce a tensor with one row for each of these indices; then they do
    that. Where XLA compiles, they gather the slices as they are, and an index
    may occur more than once. Values are those of the dense allreduce: an
    `Average` of integers adds up all slices of an index, and is then rounded
    towards zero.

    Args:
        tensor: Dense tensor of any shape and any floating, integer or bool
            dtype, or what converts to one: a number, an array, a variable. For
            `Average` and `Sum` also a `tf.IndexedSlices`; any rank may have no
            slices.
        op: How values combine: `Average` (the default), `Sum`, `Min`, `Max`,
            `Product` or, for floating dtypes, `Adasum`; for bool `Min` (all)
            or `Max` (any). An `Average` of integers is rounded towards zero;
            for 64-bit integers its sum may wrap around before that.
        name: Pairs this call across ranks. Defaults to the op's graph name, or
            in eager mode to a count of the nameless calls.
        prescale_factor: Multiplies the tensor before the reduction.
        postscale_factor: Multiplies the result.
        compression: Makes the tensor smaller while it travels:
            `Compression.none`, `Compression.fp16`, `Compression.bf16`,
            `Compression.int8` or `int4` (between hosts alone) or a class with
            the static methods of `Compressor`.
        process_set: The ranks that take part. Defaults to all.
        ignore_name_scope: Whether a nameless call in a graph is named after
            its tensor, without the name scopes around the call.
        **deprecated: None. The error for Horovod's `average`, `device_dense`
            and `device_sparse` says what to write instead.

    Returns:
        Tensor of the shape and dtype of `tensor`, equal on every rank.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on a rank.
        NotImplementedError: `tensor` is a `tf.IndexedSlices` and `op` is
            neither `Average` nor `Sum`.
        MismatchError: Ranks disagree on shape, dtype, `op`, a factor or
            `compression`.
        PeerLostError: A rank left before all had answered.
        StalledError: A rank did not come in time.

    Example, on 2 ranks:

    >>> hvd.allreduce(tf.constant([1.0, 2.0]) * (hvd.rank() + 1)).numpy()
    array([1.5, 3. ], dtype=float32)
    """
    _arguments.refuse_keywords("allreduce", deprecated)
    compression = to_compressor(compression)
    attributes = reduction_attributes(
        op, prescale_factor, postscale_factor, name, process_set
    )
    if isinstance(tensor, tf.IndexedSlices):
        how = slices_reduction(attributes, compression)
        name = _arguments.default_name(
            "allreduce", tensor.values, name, ignore_name_scope
        )
        return allreduce_slices([tensor], how, name=name)[0]
    tensor = _arguments.to_tensor(tensor, "tensor", name)
    _arguments.check_dtype(
        "allreduce", tensor, ReduceOp(attributes["reduce_op"]), name
    )
    name = _arguments.default_name("allreduce", tensor, name, ignore_name_scope)
    training_signs.note_reduced(tensor.shape.num_elements())
    wire, context = compression.compress(tensor)
    attributes["wire_format"] = wire_format_of(compression)
    reduced = emit("allreduce", wire, name=name, **attributes)
    return compression.decompress(reduced, context)


def reduction_attributes(
    op: ReduceOp | None,
    prescale_factor: float,
    postscale_factor: float,
    name: str | None,
    process_set: ProcessSet,
) -> dict[str, Any]:
    """Returns the attributes of an allreduce; raises on a bad argument."""
    _arguments.check_name(name)
    return {
        "reduce_op": int(_arguments.to_reduce_op(op, name)),
        "prescale_factor": _arguments.to_factor(
            prescale_factor, "prescale_factor", name
        ),
        "postscale_factor": _arguments.to_factor(
            postscale_factor, "postscale_factor", name
        ),
        "process_set_id": _arguments.process_set_id(process_set, name),
    }


def slices_reduction(
    attributes: dict[str, Any], compression: type[Compressor] | Compressor
) -> Reduction:
    """Returns `attributes`, from `reduction_attributes`, as a `Reduction`."""
    return Reduction(
        op=ReduceOp(attributes["reduce_op"]),
        prescale=float(attributes["prescale_factor"]),
        postscale=float(attributes["postscale_factor"]),
        compression=compression,
        process_set_id=attributes["process_set_id"],
    )


@_gradients.register("HorovodAllreduce")
def _allreduce_gradient(
    op: tf.Operation, upstream: tf.Tensor
) -> list[tf.Tensor | None]:
    name = _gradients.gradient_name(op)
    gradient = member_gradient(op, op.inputs[0], upstream, name=name)
    return [gradient, None]


def member_gradient(
    op: tf.Operation, x: tf.Tensor, upstream: tf.Tensor, *, name: Any
) -> tf.Tensor:
    """Returns the gradient with respect to one input of an allreduce.

    Args:
        op: The allreduce, of one tensor or of a group.
        x: The input.
        upstream: The gradient with respect to its output.
        name: Pairs the collectives of the gradient across ranks.
    """
    reduce_op = ReduceOp(op.get_attr("reduce_op"))
    process_set_id = op.get_attr("process_set_id")
    upstream = tf.convert_to_tensor(upstream)
    if reduce_op in _gradients.LINEAR:
        return emit(
            "allreduce",
            upstream,
            name=name,
            reduce_op=int(reduce_op),
            prescale_factor=op.get_attr("prescale_factor"),
            postscale_factor=op.get_attr("postscale_factor"),
            wire_format=op.get_attr("wire_format"),
            process_set_id=process_set_id,
        )

    def total() -> tf.Tensor:
        return emit(
            "allreduce",
            upstream,
            name=name,
            reduce_op=int(Sum),
            process_set_id=process_set_id,
        )

    return _gradients.spread(op, reduce_op, x, total, name=name)
