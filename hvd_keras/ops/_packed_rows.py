"""Rows of gradients as int8 with scales, for the way between hosts.

Each row is cut into blocks of 128 numbers. A block travels as 128 integers of 8
bits and its scale, the largest magnitude over 127: so a number moves by at most
1/254 of the largest magnitude of its block. All ranks unpack what they get, the
sender too, so that they have equal bits.
"""

from __future__ import annotations

import tensorflow as tf

from hvd_keras import basics
from hvd_keras._job import membership, registration
from hvd_keras.compression import Compressor
from hvd_keras.process_set import ProcessSet

_BLOCK = 128
_FEWEST = 8  # numbers of a row: the scale of fewer takes as much as it saves
_LEAST = 2.0**-100  # a smaller scale counts as 0


def may_pack(
    values: tf.Tensor,
    compression: type[Compressor] | Compressor,
    process_set: ProcessSet,
) -> bool:
    """Whether rows travel as int8, for reasons that do not change in a job."""
    shape = values.shape
    return (
        compression.wire in ("int8", "int4")
        and bool(values.dtype.is_floating)
        and shape.rank is not None
        and shape.rank > 1
        and (shape[1:].num_elements() or 0) >= _FEWEST
        and not membership.is_elastic()
        and registration.is_on_several_hosts(
            process_set.ranks or range(basics.size())
        )
    )


def pack(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns rows of int8, and the scales of their blocks.

    A block with NaN or an infinity gets the scale NaN.
    """
    width = values.shape[1:].num_elements()
    wide = tf.float64 if values.dtype == tf.float64 else tf.float32
    rows = tf.reshape(tf.cast(values, wide), [-1, width])
    rows = tf.pad(rows, [[0, 0], [0, -width % _BLOCK]])
    blocks = tf.reshape(rows, [-1, rows.shape[1] // _BLOCK, _BLOCK])
    # A maximum may leave NaN out.
    is_finite = tf.math.is_finite(tf.reduce_sum(blocks * 0, axis=-1))
    scales = tf.reduce_max(tf.abs(blocks), axis=-1) / 127
    scales = tf.where(is_finite & (scales >= _LEAST), scales, 0)
    divisors = tf.where(scales > 0, scales, 1)
    # Small magnitudes over 1 round to 0.
    steps = tf.round(blocks / divisors[:, :, tf.newaxis])
    steps = tf.where(is_finite[:, :, tf.newaxis], steps, 0)
    packed = tf.cast(tf.clip_by_value(steps, -127, 127), tf.int8)
    packed = tf.reshape(packed, [-1, rows.shape[1]])[:, :width]
    nan = tf.constant(float("nan"), wide)
    return packed, tf.where(is_finite, scales, nan)


def unpack(packed: tf.Tensor, scales: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Returns rows of the shape and dtype of those of `like`."""
    width = packed.shape[1]
    of_each = tf.repeat(scales, _BLOCK, axis=1)[:, :width]
    rows = tf.cast(packed, scales.dtype) * of_each
    shape = tf.concat([[-1], tf.shape(like)[1:]], axis=0)
    rows = tf.cast(tf.reshape(rows, shape), like.dtype)
    rows.set_shape([None, *like.shape[1:]])
    return rows
