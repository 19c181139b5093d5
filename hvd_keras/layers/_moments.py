"""Mean and variance of a batch that is spread over the ranks."""

from __future__ import annotations

import collections
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from keras import ops

from hvd_keras import _backends, basics
from hvd_keras._common.autograph import as_it_is
from hvd_keras._gradients.batch import gradient_weight_of_step, rows_in_step
from hvd_keras._job import state
from hvd_keras.process_set import ProcessSet, global_process_set

Tensor = Any


@as_it_is
def global_moments(
    inputs: Tensor,
    mask: Tensor | None,
    axes: Sequence[int],
    *,
    layer: Any,
    process_set: ProcessSet,
) -> tuple[Tensor, Tensor]:
    """Returns mean and variance over the positions of all ranks.

    One allreduce carries the number of positions, the sum and the sum of
    squares; the gradient takes one too. Every rank counts by its positions, and
    may have none. Rows that only fill a batch do not count, in Keras's own
    training step. Sums of squares are taken around the rank's own mean, and the
    results travel in float64. So a mean that is large beside the deviation
    costs no digits. Where there is no float64, sums are taken around the mean
    of all ranks, which costs a second allreduce. Differentiable, any number of
    times.

    Args:
        inputs: This rank's values, float32 or float64.
        mask: Which positions count, of the shape of `inputs` without its last
            axis. Defaults to all.
        axes: All axes of `inputs` but that of the channels; the number of
            channels must be known.
        layer: The layer. Pairs the call across ranks: they must use their
            layers for the first time in the same order.
        process_set: The ranks whose positions count.

    Returns:
        Two vectors with an entry for each channel, in the dtype of `inputs`;
        zeros if no rank has a position.
    """
    (channel_axis,) = set(range(len(inputs.shape))) - set(axes)
    num_channels = inputs.shape[channel_axis]
    has_float64 = _backends.current().has_float64
    wide = "float64" if has_float64 else inputs.dtype

    def summed(kind: str, parts: list[Tensor]) -> list[Tensor]:
        """Returns the sums over the ranks of vectors."""
        packed = ops.concatenate(parts)
        weight = gradient_weight_of_step()
        if weight is not None:
            weight = ops.cast(weight, packed.dtype)
            inverse = ops.divide_no_nan(ops.ones_like(weight), weight)
            packed = _with_gradient_times(packed, inverse)
        packed = _summed(packed, kind, layer, process_set)
        if weight is not None:
            packed = _with_gradient_times(packed, weight)
        ends = [i * num_channels for i in range(1, len(parts))]
        return ops.split(packed, ends)

    mask = _valid(inputs, mask, axes)
    if mask is not None:
        inputs = ops.where(mask, inputs, 0.0)
    count = _count(inputs, mask, axes, wide)
    mean = _divided(ops.cast(ops.sum(inputs, axes), wide), count)
    # A constant is enough: sums of squares around two constants differ only by
    # terms in `count` and `total`.
    base = 0.0
    center = ops.stop_gradient(ops.cast(mean, inputs.dtype))
    if not has_float64:
        total, all_counts = summed("center", [center * count, count])
        base = center = ops.stop_gradient(_divided(total, all_counts))
    shape = [1] * len(inputs.shape)
    shape[channel_axis] = num_channels
    shifted = inputs - ops.reshape(center, shape)
    if mask is not None:
        shifted = ops.where(mask, shifted, 0.0)
    total = ops.cast(ops.sum(shifted, axes), wide)
    squares = ops.cast(ops.sum(ops.square(shifted), axes), wide)
    offset = ops.cast(center, wide) - base
    squares += offset * (2.0 * total + count * offset)
    total += count * offset

    total, squares, count = summed("moments", [total, squares, count])
    count = ops.stop_gradient(count)
    mean = _divided(total, count)
    variance = _divided(squares, count) - ops.square(mean)
    variance = ops.maximum(variance, 0.0)
    mean = base + mean
    return ops.cast(mean, inputs.dtype), ops.cast(variance, inputs.dtype)


@as_it_is
def _with_gradient_times(tensor: Tensor, factor: Tensor) -> Tensor:
    """Returns the tensor; its gradient is multiplied by a factor.

    The gradients of ranks go through each other's rows, and a loss counts by
    its rank's rows. Where it does so after the gradient is taken, a gradient
    from another rank has to count by that one's rows, not by these.
    """
    scaled = tensor * factor
    return ops.stop_gradient(tensor) + (scaled - ops.stop_gradient(scaled))


@as_it_is
def synchronized_moments(
    layer: Any, inputs: Tensor, mask: Tensor | None, axes: Sequence[int]
) -> tuple[Tensor, Tensor] | None:
    """Returns what `BatchNormalization(synchronized=True)` normalizes with."""
    if (
        not basics.is_initialized()
        or _backends.current().is_in_other_strategy()
        or (basics.size() == 1 and rows_in_step() is None)
    ):
        return None
    return global_moments(
        inputs, mask, axes, layer=layer, process_set=global_process_set
    )


@as_it_is
def _valid(
    inputs: Tensor, mask: Tensor | None, axes: Sequence[int]
) -> Tensor | None:
    """Returns which values count, in the shape of `inputs`; None: all."""
    shape = ops.shape(inputs)
    valid = None
    if mask is not None:
        mask = ops.cast(ops.expand_dims(mask, -1), "bool")
        valid = ops.broadcast_to(mask, shape)
    is_row = rows_in_step() if 0 in axes else None
    if is_row is None:
        return valid
    num_rows = ops.shape(is_row)[0]
    # The layer may see something else than rows in its first axis; the numbers
    # may be known only when the step runs.
    places = ops.minimum(ops.arange(shape[0]), num_rows - 1)
    is_row = ops.logical_or(
        ops.take(is_row, places, axis=0) > 0, shape[0] != num_rows
    )
    is_row = ops.reshape(is_row, [-1] + [1] * (len(shape) - 1))
    is_row = ops.broadcast_to(is_row, shape)
    return is_row if valid is None else ops.logical_and(valid, is_row)


@as_it_is
def _count(
    inputs: Tensor, mask: Tensor | None, axes: Sequence[int], dtype: Any
) -> Tensor:
    """Returns how many positions count, for each channel if there is a mask."""
    if mask is not None:
        exact = "int64" if _backends.current().has_float64 else "int32"
        return ops.cast(ops.sum(ops.cast(mask, exact), axes), dtype)
    count = ops.ones((1,), dtype)
    for axis in axes:
        count = count * ops.cast(ops.shape(inputs)[axis], dtype)
    return count


@as_it_is
def _divided(total: Tensor, count: Tensor) -> Tensor:
    """Returns the quotient; 0 where nothing counts."""
    return total / ops.maximum(count, 1.0)


# By the generation of the job and the process set.
_Scope = tuple[int, int | None]
_numbers: dict[_Scope, Iterator[int]] = collections.defaultdict(itertools.count)
_number_of: weakref.WeakKeyDictionary[Any, tuple[_Scope, int]] = (
    weakref.WeakKeyDictionary()
)


@as_it_is
def _summed(
    packed: Tensor, kind: str, layer: Any, process_set: ProcessSet
) -> Tensor:
    """Returns the sum over the ranks; the layer names the call.

    Names of layers count all layers that a rank has made, also for a model that
    one rank alone makes. So the number here counts the layers that have
    trained in this generation of the job.
    """

    def name() -> str:
        generation = state.generation()
        scope = (generation, process_set.process_set_id)
        known, number = _number_of.get(layer, (None, 0))
        if known != scope:
            number = next(_numbers[scope])
            _number_of[layer] = (scope, number)
        return f"BatchNormalization/{generation}/{number}/{kind}"

    return _backends.current().sum_in_layer(packed, name, process_set)
