"""Grouped allgather: many tensors, gathered as one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_keras._common.autograph import as_it_is
from hvd_keras.ops import _arguments, _gradients
from hvd_keras.ops._emit import emit, refuses
from hvd_keras.ops.allgather import own_rows, rows_of_this_rank
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Sum


@as_it_is
@refuses("grouped_allgather")
def grouped_allgather(
    tensors: Sequence[Any],
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> list[tf.Tensor]:
    """Concatenates each of `tensors` over the ranks, all in one request.

    Members may differ in dtype and shape. The first dimension of each may
    differ by rank.

    Differentiable like `allgather`, for the members of floating dtype.

    Args:
        tensors: What `allgather` takes, one or more.
        name: Pairs this call across ranks. Defaults to the op's graph name, or
            in eager mode to a count of the nameless calls.
        process_set: The ranks that take part. Defaults to all.
        ignore_name_scope: Whether a nameless call in a graph is named after
            its first tensor, without the name scopes around the call.

    Returns:
        A list as long as `tensors`, of what `allgather` gives for each.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on a rank.
        MismatchError: Ranks disagree on the number of tensors, a dimension
            after the first or a dtype.
        PeerLostError: A rank left before all had answered.
        StalledError: A rank did not come in time.

    Example, on 2 ranks:

    >>> a, b = hvd.grouped_allgather([[hvd.rank()], [[0.5]]])
    >>> a.numpy(), b.numpy().shape
    (array([0, 1], dtype=int32), (2, 1))
    """
    _arguments.check_name(name)
    set_id = _arguments.process_set_id(process_set, name)
    members = []
    for i, member in enumerate(_arguments.check_members(tensors, name)):
        what = f"tensors[{i}]"
        members.append(_arguments.to_tensor(member, what, name))
        _arguments.check_has_rows(members[i], what, "gather", name)
    name = _arguments.default_name(
        "grouped_allgather", members[0], name, ignore_name_scope
    )
    gathered: list[tf.Tensor] = emit(
        "grouped_allgather", members, name=name, process_set_id=set_id
    )
    return gathered


@_gradients.register("HorovodGroupedAllgather")
def _grouped_allgather_gradient(
    op: tf.Operation, *upstreams: tf.Tensor | None
) -> list[tf.Tensor | None]:
    name = _gradients.gradient_name(op)
    process_set_id = op.get_attr("process_set_id")
    members = _gradients.floating_members(op)
    gradients: list[tf.Tensor | None] = [None] * len(op.inputs)
    if not members:
        return gradients
    summed = emit(
        "grouped_allreduce",
        _gradients.upstreams_of(op, members, upstreams),
        name=name,
        reduce_op=int(Sum),
        process_set_id=process_set_id,
    )
    inputs = [op.inputs[i] for i in members]
    rows = rows_of_this_rank(inputs, name, process_set_id)
    for place, i in enumerate(members):
        gradients[i] = own_rows(summed[place], rows, place, op.inputs[i])
    return gradients
