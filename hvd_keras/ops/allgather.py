"""Allgather: every rank gets the ranks' tensors, one after the other."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_keras._common.autograph import as_it_is
from hvd_keras.ops import _arguments, _gradients, _xla
from hvd_keras.ops._emit import emit, refuses
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Sum


@as_it_is
@refuses("allgather")
def allgather(
    tensor: Any,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> tf.Tensor:
    """Concatenates the ranks' tensors along the first dimension.

    The first dimension may differ by rank and may be 0. All other dimensions
    and the dtype must agree.

    Differentiable: the gradient is the derivative of the sum of the ranks'
    losses. The ranks sum their upstream gradients, and each takes the rows that
    it gave.

    Args:
        tensor: Dense tensor with one dimension or more, or what converts to
            one: an array, a variable.
        name: Pairs this call across ranks. Defaults to the op's graph name, or
            in eager mode to a count of the nameless calls.
        process_set: The ranks that take part. Defaults to all.
        ignore_name_scope: Whether a nameless call in a graph is named after
            its tensor, without the name scopes around the call.

    Returns:
        Tensor of the dtype of `tensor`, with the rows of the set's lowest rank
        first, then those of the next one, and so on; equal on every rank.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on a rank.
        MismatchError: Ranks disagree on a dimension after the first or on the
            dtype.
        PeerLostError: A rank left before all had answered.
        StalledError: A rank did not come in time.

    Example, on 2 ranks:

    >>> hvd.allgather(tf.fill([hvd.rank() + 1], hvd.rank())).numpy()
    array([0, 1, 1], dtype=int32)
    """
    _arguments.check_name(name)
    set_id = _arguments.process_set_id(process_set, name)
    tensor = _arguments.to_tensor(tensor, "tensor", name)
    _arguments.check_has_rows(tensor, "tensor", "gather", name)
    name = _arguments.default_name("allgather", tensor, name, ignore_name_scope)
    return emit("allgather", tensor, name=name, process_set_id=set_id)


@_gradients.register("HorovodAllgather")
def _allgather_gradient(
    op: tf.Operation, upstream: tf.Tensor
) -> list[tf.Tensor | None]:
    name = _gradients.gradient_name(op)
    process_set_id = op.get_attr("process_set_id")
    summed = emit(
        "allreduce",
        tf.convert_to_tensor(upstream),
        name=name,
        reduce_op=int(Sum),
        process_set_id=process_set_id,
    )
    rows = rows_of_this_rank([op.inputs[0]], name, process_set_id)
    return [own_rows(summed, rows, 0, op.inputs[0]), None]


def rows_of_this_rank(
    inputs: list[tf.Tensor], name: Any, process_set_id: int
) -> tf.Tensor:
    """Returns where this rank's rows are in the gathered tensors.

    Args:
        inputs: This rank's inputs to an allgather.
        name: Pairs the call across ranks.
        process_set_id: The set of the allgather.

    Returns:
        The first row and the number of rows of each input: an int64 tensor of
        shape [2, len(inputs)].
    """
    num_rows = [tf.shape(x, out_type=tf.int64)[0] for x in inputs]
    rank = _gradients.index_in_set(process_set_id)
    if _xla.in_context():  # all ranks give the same number of rows
        return tf.stack([[rank * rows for rows in num_rows], num_rows])
    on_all_ranks = emit(
        "allgather",
        tf.stack(num_rows)[None],
        name=_gradients.part_name(name, "rows"),
        process_set_id=process_set_id,
    )
    begin = tf.reduce_sum(on_all_ranks[:rank], axis=0)
    return tf.stack([begin, on_all_ranks[rank]])


def own_rows(
    gathered: tf.Tensor, rows: tf.Tensor, index: int, like: tf.Tensor
) -> tf.Tensor:
    """Returns this rank's rows of `gathered`, in the shape of `like`."""
    begin, num_rows = rows[0, index], rows[1, index]
    own = gathered[begin : begin + num_rows]
    own.set_shape(like.shape)
    return own
