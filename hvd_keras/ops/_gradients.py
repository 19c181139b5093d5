"""What the gradients of the collectives have in common."""

from __future__ import annotations

import tensorflow as tf

from hvd_keras.ops import _errors
from hvd_keras.ops.reduce_op import ReduceOp


def gradient_name(op: tf.Operation) -> str | tf.Tensor | None:
    """Returns the name of the collective in the gradient of `op`.

    A named call gives its gradient a name, so that the ranks may come to it in
    different orders. A nameless one has a nameless gradient.
    """
    tensor = op.inputs[-1]
    value = tf.get_static_value(tensor)
    if value is None:
        # A graph that got the name from outside of itself.
        empty = tf.equal(tensor, "")
        return tf.where(empty, "", tf.strings.join([tensor, "/gradient"]))
    name = value.decode() if isinstance(value, bytes) else value.item().decode()
    return f"{name}/gradient" if name else None


def differentiable_reduce_op(op: tf.Operation) -> ReduceOp:
    """Returns the reduction of an allreduce; raises where it has no gradient.

    The gradient of a minimum, a maximum or a product depends on the values of
    all ranks, which this rank has not kept.
    """
    reduce_op = ReduceOp(op.get_attr("reduce_op"))
    if reduce_op in (ReduceOp.Average, ReduceOp.Sum):
        return reduce_op
    raise _errors.invalid_argument(
        f"An allreduce must use Average or Sum to have a gradient. Received: "
        f"op={reduce_op.name} ({op.type}). Use `tf.stop_gradient` around it "
        f"if none is wanted."
    )
