"""What the gradients of the collectives have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_keras import _native
from hvd_keras.ops import _errors, _xla
from hvd_keras.ops._emit import emit
from hvd_keras.reduce_op import Average, Max, Min, Product, ReduceOp, Sum

Name = Any  # str, tf.Tensor or None

# The reductions whose gradient is a reduction of the same kind.
LINEAR = (Average, Sum)


def register(op_type: str) -> Callable[[_xla.Gradient], _xla.Gradient]:
    """Decorates the gradient of an op; its calls under XLA use it too."""

    def registered(function: _xla.Gradient) -> _xla.Gradient:
        _xla.gradients[op_type] = function
        tf.RegisterGradient(op_type)(function)
        return function

    return registered


def gradient_name(op: tf.Operation) -> str | tf.Tensor | None:
    """Returns the name of the collective in the gradient of `op`.

    The gradient of a named call has a name, so the ranks may reach it in
    different orders. A nameless call has a nameless gradient.
    """
    tensor = op.inputs[-1]
    if isinstance(tensor, str):  # under XLA
        return f"{tensor}/gradient" if tensor else None
    value = tf.get_static_value(tensor)
    if value is None:
        # The graph got the name from outside, so it is known only when run.
        empty = tf.equal(tensor, "")
        return tf.where(empty, "", tf.strings.join([tensor, "/gradient"]))
    name = value.decode() if isinstance(value, bytes) else value.item().decode()
    return f"{name}/gradient" if name else None


def part_name(name: Name, part: str) -> Name:
    """Returns the name of one of the collectives that share `name`."""
    if name is None:
        return None
    if isinstance(name, str):
        return f"{name}/{part}"
    return tf.where(tf.equal(name, ""), "", tf.strings.join([name, "/" + part]))


def index_in_set(process_set_id: int) -> int:
    """Returns the index of this rank in a process set; 0 if it is not in it.

    A rank may trace the gradient of a collective that it must not run.
    """
    core = _native.core()
    ranks = core.process_set_ranks(process_set_id)
    return ranks.index(core.rank()) if core.rank() in ranks else 0


def factor(op: tf.Operation) -> float:
    """Returns the product of both scale factors of `op`."""
    return _number(op, "prescale_factor") * _number(op, "postscale_factor")


def scaled(tensor: tf.Tensor, by: float | tf.Tensor) -> tf.Tensor:
    """Returns `tensor` times `by`, a number or a scalar of any dtype."""
    if isinstance(by, float) and by == 1.0:
        return tensor
    return tensor * tf.cast(by, tensor.dtype)


def floating_members(op: tf.Operation) -> list[int]:
    """Returns the indices of the members of a group that have gradients.

    Every rank must pass the same list to the collective of the gradient. So
    the list depends on dtypes alone, not on which outputs this rank's loss
    uses.
    """
    return [i for i, out in enumerate(op.outputs) if out.dtype.is_floating]


def upstreams_of(
    op: tf.Operation,
    members: list[int],
    upstreams: Sequence[tf.Tensor | None],
) -> list[tf.Tensor]:
    """Returns some members' upstream gradients; zeros for missing ones."""
    return [
        tf.zeros_like(op.outputs[i])
        if upstreams[i] is None
        else tf.convert_to_tensor(upstreams[i])
        for i in members
    ]


def spread(
    op: tf.Operation,
    reduce_op: ReduceOp,
    x: tf.Tensor,
    total: Callable[[], tf.Tensor],
    *,
    name: Name,
) -> tf.Tensor:
    """Returns the gradient of a `Min`, `Max` or `Product` over the ranks.

    Args:
        op: The collective, for its factors and its process set.
        reduce_op: Its reduction.
        x: This rank's input.
        total: Returns the sum of the ranks' upstream gradients, in the shape
            of `x`.
        name: Pairs the collectives in here across ranks.

    Raises:
        InvalidArgumentError: The reduction has no gradient.
    """
    arguments = {"process_set_id": op.get_attr("process_set_id")}
    if reduce_op == Product:
        return total() * _product_of_others(op, x, name, arguments)
    if reduce_op not in (Min, Max):
        raise _errors.invalid_argument(
            f"Only Average, Sum, Min, Max and Product have a gradient. "
            f"Received: op={reduce_op.name} ({op.type}). If you need no "
            f"gradient, wrap the call in `tf.stop_gradient`."
        )
    # A negative factor reverses the order.
    prescale = _number(op, "prescale_factor")
    if prescale < 0:
        reduce_op = Min if reduce_op == Max else Max
    extremum = emit(
        "allreduce",
        x,
        name=part_name(name, "extremum"),
        reduce_op=int(reduce_op),
        **arguments,
    )
    is_extremal = tf.cast(tf.equal(x, extremum), x.dtype)
    num_ties = emit(
        "allreduce",
        is_extremal,
        name=part_name(name, "ties"),
        reduce_op=int(Sum),
        **arguments,
    )
    # If the extremum is NaN, no rank equals it: 0 ties.
    share = tf.math.divide_no_nan(is_extremal, num_ties)
    return scaled(total() * tf.stop_gradient(share), factor(op))


def _product_of_others(
    op: tf.Operation, x: tf.Tensor, name: Name, arguments: dict[str, Any]
) -> tf.Tensor:
    """Returns the derivative of the product with respect to this rank's `x`.

    It multiplies the values of the other ranks. A division of the product by
    `x` would be inexact, and impossible where `x` is zero.
    """
    wide = tf.float32 if x.dtype.size == 2 else x.dtype
    prescale = _number(op, "prescale_factor")
    rows = emit(
        "allgather",
        scaled(x, prescale)[None],
        name=part_name(name, "factors"),
        **arguments,
    )
    rank = index_in_set(arguments["process_set_id"])
    rows = tf.cast(rows, wide)
    others = tf.concat([rows[:rank], rows[rank + 1 :]], axis=0)
    product = tf.cast(tf.reduce_prod(others, axis=0), x.dtype)
    product.set_shape(x.shape)
    return scaled(product, factor(op))


def _number(op: tf.Operation, attribute: str) -> float:
    return float(op.get_attr(attribute))
