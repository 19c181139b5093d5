"""Mean and variance of a batch whose rows are spread over the ranks."""

from __future__ import annotations

import collections
import itertools
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from hvd_keras import basics
from hvd_keras._common.autograph import as_it_is
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
    squares; so does its gradient. Every rank counts by its positions, and may
    have none. Sums of squares are taken around the rank's own mean, and what is
    left travels in float64: a mean that is large beside the deviation costs no
    digits. Differentiable, any number of times.

    Args:
        inputs: This rank's values, float32 or float64.
        mask: Which positions count, of the shape of `inputs` without its last
            axis; None: all.
        axes: All axes of `inputs` but that of the channels, of which there is
            a number that is known.
        layer: Whose moments they are. Pairs the call across ranks, which give
            layers their moments for the first time in the same order.
        process_set: The ranks whose positions they are.

    Returns:
        Two vectors with an entry a channel, in the dtype of `inputs`; zeros
        where no rank has a position.
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
    # A constant: sums of squares around any constant differ by terms in
    # `count` and `total` alone.
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
    """Lets `BatchNormalization(synchronized=True)` ask all ranks."""
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


_numbers: dict[int | None, Iterator[int]] = collections.defaultdict(
    itertools.count
)
_number_of: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


@as_it_is
def _summed(
    packed: tf.Tensor, layer: Any, process_set: ProcessSet
) -> tf.Tensor:
    """Returns the sum over the ranks, which know the call by its layer.

    Names of layers count all layers that a rank has made, also those of a
    model that one rank makes for itself alone; here those are counted that
    have trained. In a graph the call has no name but that of its node, which
    stays unique where a function is called twice, and under two tapes.
    """
    number = _number_of.get(layer)
    if number is None:
        number = next(_numbers[process_set.process_set_id])
        _number_of[layer] = number
    if tf.executing_eagerly():
        name = f"BatchNormalization/{number}"
        return allreduce(packed, Sum, name=name, process_set=process_set)
    with tf.name_scope(f"BatchNormalization_{number}/"):
        return allreduce(packed, Sum, process_set=process_set)
