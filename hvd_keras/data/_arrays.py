"""Cuts tensors into the batches of a rank, by tf.data."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_keras._common.autograph import as_it_is
from hvd_keras.data import _structures
from hvd_keras.data._deal import FILLING, Deal


def to_tensors(data: Any) -> Any:
    """Returns the same structure with tensors in host memory.

    Lists become tuples.

    Raises:
        ValueError: There is no array, or the arrays differ in number of rows.
    """
    tensors = _structures.converted(data, _to_tensor)
    _structures.check_rows(tf.nest.flatten(tensors))
    return tensors


def num_rows_of(tensors: Any) -> int:
    """Returns the length of the first dimension of all the tensors."""
    return int(tf.nest.flatten(tensors)[0].shape[0])


def describe(tensors: Any) -> list[Any]:
    """Returns what must be equal on all ranks."""
    return _structures.describe(
        tf.nest.flatten(tensors),
        lambda tensor, rows: tf.gather(tensor, rows).numpy(),
    )


def shard_arrays(
    tensors: Any, deal: Deal, *, shuffle: bool, seed: int
) -> tf.data.Dataset:
    """Returns this rank's batches; each iteration is an epoch.

    Args:
        tensors: As from `to_tensors`, equal on all ranks.
        deal: Assigns the rows to the ranks.
        shuffle: Whether rows come in another order in each epoch.
        seed: Decides on the order, together with the number of the epoch.
    """
    num_rows = num_rows_of(tensors)
    num_steps = deal.num_global_steps(num_rows)
    full = deal.global_size
    last = num_steps * full if deal.policy == "drop" else num_rows
    epochs = itertools.count()

    def next_order() -> Any:
        # NumPy's: TensorFlow mixes its global seed, which may differ by rank,
        # into its generators.
        generator = np.random.default_rng([seed, next(epochs)])
        return generator.permutation(num_rows)

    @as_it_is
    def order_of_epoch(_: tf.Tensor) -> tf.Tensor:
        if not shuffle:
            return tf.range(num_rows, dtype=tf.int64)
        order = tf.numpy_function(next_order, [], tf.int64)
        return tf.ensure_shape(order, [num_rows])

    @as_it_is
    def batches_of(order: tf.Tensor) -> tf.data.Dataset:
        @as_it_is
        def batch(step: tf.Tensor) -> tf.Tensor:
            end = (step + 1) * full
            is_last = step == num_steps - 1
            end = tf.where(is_last, tf.constant(last, tf.int64), end)
            return order[step * full : end]

        steps = tf.data.Dataset.range(deal.num_steps(num_rows))
        return steps.map(batch)

    @as_it_is
    def fetch(rows: tf.Tensor) -> Any:
        places, weights = own_rows(deal, tf.size(rows, tf.int64))
        own = tf.gather(rows, places)
        if deal.is_static(num_rows):
            own = tf.ensure_shape(own, [deal.batch_size])
            weights = tf.ensure_shape(weights, [deal.batch_size])
        data = tf.nest.map_structure(lambda t: tf.gather(t, own), tensors)
        return weighted(data, weights) if deal.may_fill(num_rows) else data

    dataset = tf.data.Dataset.from_tensors(0).map(order_of_epoch)
    dataset = dataset.flat_map(batches_of)
    dataset = dataset.map(fetch, num_parallel_calls=2, deterministic=True)
    count = tf.data.experimental.assert_cardinality(deal.num_steps(num_rows))
    return dataset.apply(count).prefetch(2)


def own_rows(deal: Deal, num_rows: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Does what `deal.own_rows` does, for an int64 scalar in a graph."""
    num_rows = tf.cast(num_rows, tf.int64)
    begin, end = deal.bounds(num_rows)
    num_places = end - begin
    if deal.policy == "pad":
        num_places = tf.maximum(num_places, deal.batch_size)
    elif deal.policy == "split" and deal.has_weights:
        num_places = tf.maximum(num_places, 1)
    places = tf.range(begin, begin + num_places)
    weights = tf.where(places < end, 1.0, FILLING)
    return places % tf.maximum(num_rows, 1), weights


def weighted(data: Any, weights: Any) -> Any:
    """Returns a batch for Keras that tells which rows only fill it.

    Args:
        data: A batch: (x, y) or (x, y, sample_weight).
        weights: A vector with an entry for each row: 1, or `FILLING`.
    """
    if len(data) == 2:
        return (*data, weights)
    is_row = weights > 0

    def marked(own: Any) -> Any:
        own = tf.convert_to_tensor(own)
        if not own.dtype.is_floating:
            own = tf.cast(own, tf.float32)
        shape = [-1] + [1] * (len(own.shape) - 1)
        return tf.where(
            tf.reshape(is_row, shape), own, tf.cast(FILLING, own.dtype)
        )

    return (*data[:2], tf.nest.map_structure(marked, data[2]))


def _to_tensor(data: Any) -> tf.Tensor:
    with tf.device("CPU:0"):
        return tf.convert_to_tensor(data)
