"""Grouped reducescatter: many tensors, reduced and cut up as one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_keras._common.autograph import as_it_is
from hvd_keras.compression import Compression, Compressor, to_compressor
from hvd_keras.ops import _arguments, _gradients
from hvd_keras.ops._emit import emit, refuses
from hvd_keras.ops.reducescatter import (
    gather_shares,
    linear_gradient,
    reducescatter_attributes,
    scattered_gradient,
    to_scatter,
)
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import ReduceOp


@as_it_is
@refuses("grouped_reducescatter")
def grouped_reducescatter(
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
) -> list[tf.Tensor]:
    """Reduces each of `tensors` and gives each rank shares, in one request.

    Members may differ in dtype and shape. Each rank gets some rows of each.
    Differentiable like `reducescatter`, for the members of floating dtype.

    Args:
        tensors: What `reducescatter` takes, one or more.
        op: How the values of all members combine. Defaults to `Average`.
        name: Pairs this call across ranks. Defaults to the op's graph name, or
            in eager mode to a count of the nameless calls.
        prescale_factor: Multiplies the tensors before the reduction.
        postscale_factor: Multiplies the results.
        compression: As for `allreduce`, for each member.
        process_set: The ranks that take part. Defaults to all.
        ignore_name_scope: Whether a nameless call in a graph is named after
            its first tensor, without the name scopes around the call.
        **deprecated: As for `reducescatter`.

    Returns:
        A list as long as `tensors`, of what `reducescatter` gives for each.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on a rank.
        MismatchError: Ranks disagree on the number of tensors, a shape, a
            dtype, `op` or a factor.
        PeerLostError: A rank left before all had answered.
        StalledError: A rank did not come in time.

    Example, on 2 ranks:

    >>> a, b = hvd.grouped_reducescatter([tf.ones([2]), tf.ones([4, 3])])
    >>> a.shape, b.shape
    (TensorShape([1]), TensorShape([2, 3]))
    """
    _arguments.refuse_keywords("grouped_reducescatter", deprecated)
    compression = to_compressor(compression)
    attributes = reducescatter_attributes(
        op, prescale_factor, postscale_factor, name, process_set
    )
    members = [
        to_scatter(member, f"tensors[{i}]", attributes, name)
        for i, member in enumerate(_arguments.check_members(tensors, name))
    ]
    name = _arguments.default_name(
        "grouped_reducescatter", members[0], name, ignore_name_scope
    )
    wires, contexts = zip(*map(compression.compress, members), strict=True)
    shares = emit("grouped_reducescatter", list(wires), name=name, **attributes)
    return list(map(compression.decompress, shares, contexts))


@_gradients.register("HorovodGroupedReducescatter")
def _grouped_reducescatter_gradient(
    op: tf.Operation, *upstreams: tf.Tensor | None
) -> list[tf.Tensor | None]:
    name = _gradients.gradient_name(op)
    members = _gradients.floating_members(op)
    gradients: list[tf.Tensor | None] = [None] * len(op.inputs)
    ups = _gradients.upstreams_of(op, members, upstreams)
    if members and ReduceOp(op.get_attr("reduce_op")) in _gradients.LINEAR:
        gathered = gather_shares(
            ups,
            [op.inputs[i] for i in members],
            name=name,
            process_set_id=op.get_attr("process_set_id"),
        )
        for i, tensor in zip(members, gathered, strict=True):
            gradients[i] = linear_gradient(op, tensor)
        return gradients
    for i, upstream in zip(members, ups, strict=True):
        gradients[i] = scattered_gradient(
            op, op.inputs[i], upstream, name=_gradients.part_name(name, str(i))
        )
    return gradients
