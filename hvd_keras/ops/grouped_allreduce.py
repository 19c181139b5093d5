"""Grouped allreduce: many tensors, reduced as one request."""

from __future__ import annotations

from collections.abc import Sequence
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
from hvd_keras.ops._slices import allreduce_slices
from hvd_keras.ops.allreduce import (
    member_gradient,
    reduction_attributes,
    slices_reduction,
)
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import ReduceOp


@as_it_is
@refuses("grouped_allreduce")
def grouped_allreduce(
    tensors: Sequence[Any],
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: type[Compressor] | Compressor = Compression.none,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    **deprecated: Any,
) -> list[tf.Tensor | tf.IndexedSlices]:
    """Reduces each of `tensors` over the ranks, all in one request.

    The ranks agree once for the whole group, and no member waits for another
    call. Members may differ in dtype and shape; every rank passes the same list
    of dtypes and shapes. Differentiable like `allreduce`, for the members of
    floating dtype. Members that are `tf.IndexedSlices` are reduced as in
    `allreduce`, together in requests of their own.

    Args:
        tensors: What `allreduce` takes, one or more.
        op: How the values of all members combine. Defaults to `Average`.
        name: Pairs this call across ranks. Defaults to the op's graph name, or
            in eager mode to a count of the nameless calls.
        prescale_factor: Multiplies the tensors before the reduction.
        postscale_factor: Multiplies the results.
        compression: As for `allreduce`, for each member.
        process_set: The ranks that take part. Defaults to all.
        ignore_name_scope: Whether a nameless call in a graph is named after
            its first tensor, without the name scopes around the call.
        **deprecated: As for `allreduce`.

    Returns:
        A list as long as `tensors`, of each member's reduction.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on a rank.
        NotImplementedError: A member is a `tf.IndexedSlices` and `op` is
            neither `Average` nor `Sum`.
        MismatchError: Ranks disagree on the number of tensors, a shape, a
            dtype, `op`, a factor or `compression`.
        PeerLostError: A rank left before all had answered.
        StalledError: A rank did not come in time.

    Example, on 2 ranks:

    >>> a, b = hvd.grouped_allreduce([tf.ones([2]), tf.constant(3)], hvd.Sum)
    >>> a.numpy(), b.numpy()
    (array([2., 2.], dtype=float32), 6)
    """
    _arguments.refuse_keywords("grouped_allreduce", deprecated)
    compression = to_compressor(compression)
    attributes = reduction_attributes(
        op, prescale_factor, postscale_factor, name, process_set
    )
    reduce_op = ReduceOp(attributes["reduce_op"])
    results: dict[int, tf.Tensor | tf.IndexedSlices] = {}
    sparse: dict[int, tf.IndexedSlices] = {}
    dense: dict[int, tf.Tensor] = {}
    for i, member in enumerate(_arguments.check_members(tensors, name)):
        if isinstance(member, tf.IndexedSlices):
            sparse[i] = member
        else:
            dense[i] = _arguments.to_tensor(member, f"tensors[{i}]", name)
            _arguments.check_dtype("allreduce", dense[i], reduce_op, name)
            training_signs.note_reduced(dense[i].shape.num_elements())
    if sparse:
        how = slices_reduction(attributes, compression)
        members = list(sparse.values())
        sparse_name = _arguments.default_name(
            "grouped_allreduce", members[0].values, name, ignore_name_scope
        )
        slices = allreduce_slices(members, how, name=sparse_name)
        results.update(zip(sparse, slices, strict=True))
    if dense:
        together = list(dense.values())
        name = _arguments.default_name(
            "grouped_allreduce", together[0], name, ignore_name_scope
        )
        wires, contexts = zip(*map(compression.compress, together), strict=True)
        attributes["wire_format"] = wire_format_of(compression)
        reduced = emit(
            "grouped_allreduce", list(wires), name=name, **attributes
        )
        results.update(
            zip(
                dense,
                map(compression.decompress, reduced, contexts),
                strict=True,
            )
        )
    return [results[i] for i in range(len(tensors))]


@_gradients.register("HorovodGroupedAllreduce")
def _grouped_allreduce_gradient(
    op: tf.Operation, *upstreams: tf.Tensor | None
) -> list[tf.Tensor | None]:
    members = _gradients.floating_members(op)
    ups = _gradients.upstreams_of(op, members, upstreams)
    gradients: list[tf.Tensor | None] = [None] * len(op.inputs)
    name = _gradients.gradient_name(op)
    if not members:
        return gradients
    if ReduceOp(op.get_attr("reduce_op")) not in _gradients.LINEAR:
        for i, upstream in zip(members, ups, strict=True):
            gradients[i] = member_gradient(
                op,
                op.inputs[i],
                upstream,
                name=_gradients.part_name(name, str(i)),
            )
        return gradients
    reduced = emit(
        "grouped_allreduce",
        ups,
        name=name,
        reduce_op=op.get_attr("reduce_op"),
        prescale_factor=op.get_attr("prescale_factor"),
        postscale_factor=op.get_attr("postscale_factor"),
        wire_format=op.get_attr("wire_format"),
        process_set_id=op.get_attr("process_set_id"),
    )
    for i, gradient in zip(members, reduced, strict=True):
        gradients[i] = gradient
    return gradients


@_gradients.register("HorovodGroupedAllreduceStart")
def _start_gradient(
    op: tf.Operation, *upstreams: tf.Tensor | None
) -> list[tf.Tensor | None]:
    return _grouped_allreduce_gradient(op, *upstreams[:-1])


@_gradients.register("HorovodGroupedAllreduceEnd")
def _end_gradient(
    op: tf.Operation, *upstreams: tf.Tensor | None
) -> list[tf.Tensor | None]:
    return [*upstreams, None]
