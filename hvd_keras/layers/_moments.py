"""Mean and variance of a batch that is spread over the ranks."""

from __future__ import annotations

import collections
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from hvd_keras import basics
from hvd_keras._common.autograph import as_it_is
from hvd_keras._job import state
from hvd_keras._keras import tensorflow as private
from hvd_keras.ops.allreduce import allreduce
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Sum


@as_it_is
def global_moments(
    inputs: tf.Tensor,
    mask: tf.Tensor | None,
    axes: Sequence[int],
    *,
    layer: Any,
    process_set: ProcessSet,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns mean and variance over the positions of all ranks.

    One allreduce carries the number of positions, the sum and the sum of
    squares; the gradient takes one too. Every rank counts by its positions, and
    may have none. Sums of squares are taken around the rank's own mean, and the
    results travel in float64. So a mean that is large beside the deviation
    costs no digits. Differentiable, any number of times.

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
    (channel_axis,) = set(range(inputs.shape.rank)) - set(axes)
    num_channels = inputs.shape[channel_axis]
    if mask is None:
        num_values = tf.size(inputs, out_type=tf.int64)
        counts = tf.reshape(num_values // num_channels, [1])
        shifted = inputs
    else:
        mask = tf.cast(tf.expand_dims(mask, -1), tf.bool)
        mask = tf.broadcast_to(mask, tf.shape(inputs))
        counts = tf.reduce_sum(tf.cast(mask, tf.int64), axes)
        inputs = tf.where(mask, inputs, 0.0)
    count = tf.cast(counts, tf.float64)
    total = tf.cast(tf.reduce_sum(inputs, axes), tf.float64)
    # A constant is enough: sums of squares around two constants differ only by
    # terms in `count` and `total`.
    mean = tf.math.divide_no_nan(total, count)
    center = tf.stop_gradient(tf.cast(mean, inputs.dtype))
    shape = [1] * inputs.shape.rank
    shape[channel_axis] = num_channels
    shifted = inputs - tf.reshape(center, shape)
    if mask is not None:
        shifted = tf.where(mask, shifted, 0.0)
    squares = tf.cast(tf.reduce_sum(tf.square(shifted), axes), tf.float64)
    center = tf.cast(center, tf.float64)
    squares += 2.0 * center * total - count * tf.square(center)

    packed = tf.concat([total, squares, count], axis=0)
    packed = _summed(packed, layer, process_set)
    total = packed[:num_channels]
    squares = packed[num_channels : 2 * num_channels]
    count = tf.stop_gradient(packed[2 * num_channels :])
    mean = tf.math.divide_no_nan(total, count)
    variance = tf.math.divide_no_nan(squares, count) - tf.square(mean)
    variance = tf.maximum(variance, 0.0)
    return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def synchronize_batch_normalization() -> None:
    """Makes `BatchNormalization(synchronized=True)` use all ranks."""
    private.patch_synchronized_moments(_synchronized_moments)


@as_it_is
def _synchronized_moments(
    layer: Any, inputs: tf.Tensor, mask: tf.Tensor | None, axes: Sequence[int]
) -> tuple[tf.Tensor, tf.Tensor] | None:
    if not basics.is_initialized() or basics.size() == 1:
        return None
    return global_moments(
        inputs, mask, axes, layer=layer, process_set=global_process_set
    )


# By the epoch of the job and the process set.
_Scope = tuple[int, int | None]
_numbers: dict[_Scope, Iterator[int]] = collections.defaultdict(itertools.count)
_number_of: weakref.WeakKeyDictionary[Any, tuple[_Scope, int]] = (
    weakref.WeakKeyDictionary()
)


@as_it_is
def _summed(
    packed: tf.Tensor, layer: Any, process_set: ProcessSet
) -> tf.Tensor:
    """Returns the sum over the ranks; the layer names the call.

    Names of layers count all layers that a rank has made, also for a model that
    one rank alone makes. So the number here counts the layers that have
    trained in this epoch of the job. In a graph, the name of the node names
    the call: it stays unique when a function is called twice, and under two
    tapes.
    """
    epoch = state.epoch()
    scope = (epoch, process_set.process_set_id)
    known, number = _number_of.get(layer, (None, 0))
    if known != scope:
        number = next(_numbers[scope])
        _number_of[layer] = (scope, number)
    if tf.executing_eagerly():
        name = f"BatchNormalization/{epoch}/{number}"
        return allreduce(packed, Sum, name=name, process_set=process_set)
    with tf.name_scope(f"BatchNormalization_{epoch}_{number}/"):
        return allreduce(packed, Sum, process_set=process_set)
