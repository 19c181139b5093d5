"""Reducescatter: every rank gets a share of the reduction's rows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_keras import _native
from hvd_keras._common.autograph import as_it_is
from hvd_keras.compression import Compression, Compressor, to_compressor
from hvd_keras.ops import _arguments, _errors, _gradients, _xla
from hvd_keras.ops._emit import emit, refuses
from hvd_keras.ops.allreduce import reduction_attributes
from hvd_keras.ops.topology import size_op
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Adasum, Average, ReduceOp, Sum


@as_it_is
@refuses("reducescatter")
def reducescatter(
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
) -> tf.Tensor:
    """Reduces `tensor` over the ranks and gives each rank a share of the rows.

    Every rank calls this with the same `name`, shape and dtype. The ranks get
    the rows in order of rank. If the number of rows is not divisible by the
    size, the first `rows mod size` ranks get one row more.

    Differentiable: the gradient is the derivative of the sum of the ranks'
    losses. For `Sum` it is the allgather of the upstream gradients, times the
    factors; for `Average` the same, divided by the size. For `Min`, `Max` and
    `Product` see `allreduce`.

    Args:
        tensor: Dense tensor with one dimension or more, of any floating,
            integer or bool dtype, or what converts to one.
        op: How values combine: `Average` (the default), `Sum`, `Min`, `Max` or
            `Product`; for bool `Min` (all) or `Max` (any). An `Average` of
            integers is rounded towards zero.
        name: Pairs this call across ranks. Defaults to the op's graph name, or
            in eager mode to a count of the nameless calls.
        prescale_factor: Multiplies the tensor before the reduction.
        postscale_factor: Multiplies the result.
        compression: As for `allreduce`.
        process_set: The ranks that take part. Defaults to all.
        ignore_name_scope: Whether a nameless call in a graph is named after
            its tensor, without the name scopes around the call.
        **deprecated: None. The error for Horovod's `device_dense` says what to
            write instead.

    Returns:
        Tensor of the dtype of `tensor`, with this rank's rows of the reduction.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on a rank.
        MismatchError: Ranks disagree on shape, dtype, `op` or a factor.
        PeerLostError: A rank left before all had answered.
        StalledError: A rank did not come in time.

    Example, on 2 ranks:

    >>> hvd.reducescatter(tf.constant([1.0, 2.0, 3.0]), hvd.Sum).numpy()
    array([2., 4.], dtype=float32)  # and on rank 1: array([6.])
    """
    _arguments.refuse_keywords("reducescatter", deprecated)
    compression = to_compressor(compression)
    attributes = reducescatter_attributes(
        op, prescale_factor, postscale_factor, name, process_set
    )
    tensor = to_scatter(tensor, "tensor", attributes, name)
    name = _arguments.default_name(
        "reducescatter", tensor, name, ignore_name_scope
    )
    wire, context = compression.compress(tensor)
    share = emit("reducescatter", wire, name=name, **attributes)
    return compression.decompress(share, context)


def reducescatter_attributes(
    op: ReduceOp | None,
    prescale_factor: float,
    postscale_factor: float,
    name: str | None,
    process_set: ProcessSet,
) -> dict[str, Any]:
    """Returns the attributes of the op; raises on a bad argument."""
    attributes = reduction_attributes(
        op, prescale_factor, postscale_factor, name, process_set
    )
    if attributes["reduce_op"] == Adasum:
        raise _errors.invalid_argument(
            f"A reducescatter must use Average, Sum, Min, Max or Product. "
            f"Received: op=Adasum (tensor '{name or ''}'). Use `allreduce`."
        )
    return attributes


def to_scatter(
    tensor: Any, what: str, attributes: dict[str, Any], name: str | None
) -> tf.Tensor:
    """Returns `tensor` as a tensor; raises if it cannot be scattered."""
    tensor = _arguments.to_tensor(tensor, what, name)
    _arguments.check_has_rows(tensor, what, "scatter", name)
    reduce_op = ReduceOp(attributes["reduce_op"])
    _arguments.check_dtype("reducescatter", tensor, reduce_op, name)
    return tensor


@_gradients.register("HorovodReducescatter")
def _reducescatter_gradient(
    op: tf.Operation, upstream: tf.Tensor
) -> list[tf.Tensor | None]:
    name = _gradients.gradient_name(op)
    upstream = tf.convert_to_tensor(upstream)
    return [scattered_gradient(op, op.inputs[0], upstream, name=name), None]


def scattered_gradient(
    op: tf.Operation, x: tf.Tensor, upstream: tf.Tensor, *, name: Any
) -> tf.Tensor:
    """Returns the gradient with respect to one input of a reducescatter.

    Args:
        op: The reducescatter, of one tensor or of a group.
        x: The input.
        upstream: The gradient with respect to its output.
        name: Pairs the collectives of the gradient across ranks.
    """
    reduce_op = ReduceOp(op.get_attr("reduce_op"))
    process_set_id = op.get_attr("process_set_id")

    def total() -> tf.Tensor:
        (gathered,) = gather_shares(
            [upstream], [x], name=name, process_set_id=process_set_id
        )
        return gathered

    if reduce_op in _gradients.LINEAR:
        return linear_gradient(op, total())
    return _gradients.spread(op, reduce_op, x, total, name=name)


def gather_shares(
    shares: list[tf.Tensor],
    wholes: list[tf.Tensor],
    *,
    name: Any,
    process_set_id: int,
) -> list[tf.Tensor]:
    """Gathers the ranks' shares of reducescatters into whole tensors.

    Args:
        shares: This rank's rows of each tensor.
        wholes: Tensors of the shapes of the results.
        name: Pairs the call across ranks.
        process_set_id: The ranks that have the shares.
    """
    size = len(_native.core().process_set_ranks(process_set_id))
    is_even = all(
        whole.shape[0] is not None and whole.shape[0] % size == 0
        for whole in wholes
    )
    kind = "grouped_allgather"
    attributes: dict[str, Any] = {"process_set_id": process_set_id}
    if _xla.in_context() and not is_even:
        # Under XLA all ranks must give an allgather the same number of rows.
        kind = "grouped_allreduce"
        attributes["reduce_op"] = int(Sum)
        index = _gradients.index_in_set(process_set_id)
        shares = [
            _padded(share, whole, size, index)
            for share, whole in zip(shares, wholes, strict=True)
        ]
    gathered: list[tf.Tensor] = emit(kind, shares, name=name, **attributes)
    for tensor, whole in zip(gathered, wholes, strict=True):
        tensor.set_shape(whole.shape)
    return gathered


def _padded(
    share: tf.Tensor, whole: tf.Tensor, size: int, index: int
) -> tf.Tensor:
    """Returns a rank's share, padded with zeros for the others' rows."""
    num_rows = tf.shape(whole)[0]
    begin = index * (num_rows // size) + tf.minimum(index, num_rows % size)
    rest = num_rows - begin - tf.shape(share)[0]
    return tf.pad(share, [[begin, rest], *[[0, 0]] * (share.shape.rank - 1)])


def linear_gradient(op: tf.Operation, gathered: tf.Tensor) -> tf.Tensor:
    """Returns the gradient for `Average` and `Sum`.

    Args:
        op: The reducescatter.
        gathered: The upstream gradients of all ranks, concatenated.
    """
    gradient = _gradients.scaled(gathered, _gradients.factor(op))
    if op.get_attr("reduce_op") == Average:
        size = size_op(op.get_attr("process_set_id"))
        gradient = gradient / tf.cast(size, gradient.dtype)
    return gradient
