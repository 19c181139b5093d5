"""Alltoall: every rank sends a part of its rows to each rank."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_keras._common.autograph import as_it_is
from hvd_keras.ops import _arguments, _errors, _gradients
from hvd_keras.ops._emit import emit, refuses
from hvd_keras.process_set import ProcessSet, global_process_set


@as_it_is
@refuses("alltoall")
def alltoall(
    tensor: Any,
    splits: Any = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> tf.Tensor | tuple[tf.Tensor, tf.Tensor]:
    """Sends rows to each rank of a process set and receives rows from each.

    Differentiable: the gradient is an alltoall that sends each row's upstream
    gradient back to the rank that the row came from.

    Args:
        tensor: Dense tensor with one dimension or more, or what converts to
            one. Its first `splits[0]` rows go to the set's lowest rank, the
            next `splits[1]` to the next one, and so on. The first dimension
            may differ by rank; all others and the dtype must agree.
        splits: How many rows go to each rank: one integer >= 0 for each rank of
            the set, together the first dimension. Defaults to equal parts; then
            the first dimension must be divisible by the size. In a function,
            the length of `splits` may be unknown while it is traced; if
            `splits` is then empty, the parts are equal.
        name: Pairs this call across ranks. Defaults to the op's graph name, or
            in eager mode to a count of the nameless calls.
        process_set: The ranks that take part. Defaults to all.
        ignore_name_scope: Whether a nameless call in a graph is named after
            its tensor, without the name scopes around the call.

    Returns:
        Tensor of the dtype of `tensor`, with the rows of the set's lowest rank
        first, then those from the next one, and so on. With `splits`, a tuple
        of this tensor and an int32 vector that says how many rows came from
        each rank.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on a rank.
        MismatchError: Ranks disagree on a dimension after the first or on the
            dtype.
        PeerLostError: A rank left before all had answered.
        StalledError: A rank did not come in time.

    Example, on 2 ranks:

    >>> rows, received = hvd.alltoall([hvd.rank()] * 3, splits=[1, 2])
    >>> rows.numpy(), received.numpy()  # on rank 1
    (array([0, 0, 1, 1], dtype=int32), array([2, 2], dtype=int32))
    """
    _arguments.check_name(name)
    set_id = _arguments.process_set_id(process_set, name)
    tensor = _arguments.to_tensor(tensor, "tensor", name)
    _arguments.check_has_rows(tensor, "tensor", "cut", name)
    if splits is not None:
        splits = _to_splits(splits, name)
    _arguments.check_splits(tensor, splits, process_set, name)
    name = _arguments.default_name("alltoall", tensor, name, ignore_name_scope)
    output, received = emit(
        "alltoall",
        tensor,
        tf.zeros([0], tf.int32) if splits is None else splits,
        name=name,
        process_set_id=set_id,
    )
    return output if splits is None else (output, received)


def _to_splits(splits: Any, name: str | None) -> tf.Tensor:
    try:
        return tf.convert_to_tensor(splits)
    except (TypeError, ValueError) as error:
        raise _errors.invalid_argument(
            f"`splits` must be a vector of integers. Received: splits="
            f"{splits!r} (tensor '{name or ''}'): {error}"
        ) from error


@_gradients.register("HorovodAlltoall")
def _alltoall_gradient(
    op: tf.Operation, upstream: tf.Tensor | None, _: Any
) -> list[tf.Tensor | None]:
    if upstream is None:  # other ranks may have one: take part with zeros
        upstream = tf.zeros_like(op.outputs[0])
    gradient, _ = emit(
        "alltoall",
        tf.convert_to_tensor(upstream),
        op.outputs[1],
        name=_gradients.gradient_name(op),
        process_set_id=op.get_attr("process_set_id"),
    )
    gradient.set_shape(op.inputs[0].shape)
    return [gradient, None, None]
