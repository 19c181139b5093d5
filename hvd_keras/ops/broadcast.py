"""Broadcast: every rank gets the tensor of one rank."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_keras import _native
from hvd_keras._common.autograph import as_it_is
from hvd_keras.ops import _arguments, _gradients
from hvd_keras.ops._emit import emit, refuses
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Sum


@as_it_is
@refuses("broadcast")
def broadcast(
    tensor: Any,
    root_rank: int,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> tf.Tensor:
    """Returns the tensor of `root_rank`, on every rank of a process set.

    Every rank passes a tensor of the same shape and dtype; only the root's
    values count. Differentiable: the gradient is the derivative of the sum of
    the ranks' losses. The root's gradient is the sum of the ranks' upstream
    gradients; the other ranks' is zero.

    Args:
        tensor: Dense tensor of any shape and any floating, integer or bool
            dtype, or what converts to one: a number, an array, a variable.
        root_rank: The global rank whose tensor all get, also if `process_set`
            holds only some of the ranks.
        name: Pairs this call across ranks. Defaults to the op's graph name, or
            in eager mode to a count of the nameless calls.
        process_set: The ranks that take part. Defaults to all.
        ignore_name_scope: Whether a nameless call in a graph is named after
            its tensor, without the name scopes around the call.

    Returns:
        Tensor of the shape and dtype of `tensor`, equal on every rank.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on a rank.
        MismatchError: Ranks disagree on shape, dtype or `root_rank`.
        PeerLostError: A rank left before all had answered.
        StalledError: A rank did not come in time.

    Example, on 2 ranks:

    >>> hvd.broadcast(tf.constant([hvd.rank()]), root_rank=1).numpy()
    array([1], dtype=int32)
    """
    _arguments.check_name(name)
    set_id = _arguments.process_set_id(process_set, name)
    root_rank = _arguments.to_root_rank(root_rank, process_set, name)
    tensor = _arguments.to_tensor(tensor, "tensor", name)
    name = _arguments.default_name("broadcast", tensor, name, ignore_name_scope)
    return emit(
        "broadcast",
        tensor,
        name=name,
        root_rank=root_rank,
        process_set_id=set_id,
    )


@_gradients.register("HorovodBroadcast")
def _broadcast_gradient(
    op: tf.Operation, upstream: tf.Tensor
) -> list[tf.Tensor | None]:
    summed = emit(
        "allreduce",
        tf.convert_to_tensor(upstream),
        name=_gradients.gradient_name(op),
        reduce_op=int(Sum),
        process_set_id=op.get_attr("process_set_id"),
    )
    if _native.core().rank() == op.get_attr("root_rank"):
        return [summed, None]
    # The zeros wait for the allreduce. Otherwise a TF1-style graph would prune
    # it on this rank, and the root would wait.
    with tf.control_dependencies([summed]):
        return [tf.zeros_like(summed), None]
