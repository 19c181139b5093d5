"""Broadcast: every rank gets the tensor of one of them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_keras import _native
from hvd_keras.ops import _arguments, _gradients
from hvd_keras.ops._emit import emit
from hvd_keras.ops.reduce_op import Average


def broadcast(
    tensor: Any, root_rank: int, *, name: str | None = None
) -> tf.Tensor:
    """Returns the tensor of `root_rank`, on every rank.

    Every rank passes a tensor of the same shape and dtype; only the root's
    values count. Differentiable: at the root the gradient is the average over
    the ranks of the upstream gradients, on the others zero.

    Args:
        tensor: Dense tensor of any shape and any floating, integer or bool
            dtype, or what converts to one: a number, an array, a variable.
        root_rank: The rank whose tensor all get.
        name: Pairs this call across ranks. Defaults to the op's graph name, or
            in eager mode to a count of the nameless calls.

    Returns:
        Tensor of the shape and dtype of `tensor`, equal on every rank.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on this rank.
        MismatchError: Ranks disagree on shape, dtype or `root_rank`.
        PeerLostError: A rank left before all had answered.
        StalledError: A rank did not come in time.

    Example, on 2 ranks:

    >>> hvd.broadcast(tf.constant([hvd.rank()]), root_rank=1).numpy()
    array([1], dtype=int32)
    """
    _arguments.check_name(name)
    _arguments.check_root_rank(root_rank, name)
    tensor = _arguments.to_tensor(tensor, "tensor", name)
    return emit("broadcast", tensor, name=name, root_rank=root_rank)


@tf.RegisterGradient("HorovodBroadcast")
def _broadcast_gradient(
    op: tf.Operation, upstream: tf.Tensor
) -> list[tf.Tensor | None]:
    averaged = emit(
        "allreduce",
        tf.convert_to_tensor(upstream),
        name=_gradients.gradient_name(op),
        reduce_op=int(Average),
        process_set_id=op.get_attr("process_set_id"),
    )
    if _native.core().rank() == op.get_attr("root_rank"):
        return [averaged, None]
    # The zeros wait for the allreduce, or a TF1-style graph would prune it on
    # this rank and leave the root waiting.
    with tf.control_dependencies([averaged]):
        return [tf.zeros_like(averaged), None]
