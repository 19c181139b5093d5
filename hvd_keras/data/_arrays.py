"""Cuts tensors into the batches of a rank, by tf.data."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from hvd_keras._common.python_calls import call_on_arrays
from hvd_keras.data import _structures
from hvd_keras.data._deal import FILLING, Deal
from hvd_keras.data._pass import Shuffle, order_of
from hvd_keras.data._pass import own_rows as own_rows_of_steps
from hvd_keras.data._tracing import unoptimized
from hvd_keras.data.position import Handle


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
    tensors: Any, handle: Handle, deal: Deal, *, shuffle: Shuffle, seed: int
) -> tf.data.Dataset:
    """Returns this rank's batches; each iteration is an epoch.

    Args:
        tensors: As from `to_tensors`, equal on all ranks.
        handle: Says where an iteration begins, and for which ranks.
        deal: Decides about the form of the batches.
        shuffle: Whether rows come in another order in each epoch, or what
            draws it.
        seed: Decides on the order, together with the number of the epoch.
    """
    num_rows = num_rows_of(tensors)
    is_static, fills = deal.is_static(num_rows), deal.may_fill(num_rows)

    def begin() -> Any:
        part = handle.begin()
        if callable(shuffle):
            return own_rows_of_steps(shuffle(num_rows, part.epoch), part)
        order = order_of(num_rows, part.epoch, shuffle=shuffle, seed=seed)
        rows = np.arange(num_rows) if order is None else order
        return own_rows_of_steps(rows, part)

    @unoptimized
    def steps(_: tf.Tensor) -> Any:
        parts = call_on_arrays(begin, [], [tf.int64] * 3)
        # tf.data takes the length from here. That of an iteration from the
        # middle of an epoch is smaller, which `unbatch` allows.
        length = None if deal.is_elastic else deal.num_steps(num_rows)
        for part, rank in zip(parts, (2, 1, 1), strict=True):
            part.set_shape([length] + [None] * (rank - 1))
        return tuple(parts)

    @unoptimized
    def fetch(rows: tf.Tensor, places: tf.Tensor, num_real: tf.Tensor) -> Any:
        own = rows[:places]
        weights = tf.where(tf.range(places) < num_real, 1.0, FILLING)
        if is_static:
            own = tf.ensure_shape(own, [deal.batch_size])
            weights = tf.ensure_shape(weights, [deal.batch_size])
        data = tf.nest.map_structure(lambda t: tf.gather(t, own), tensors)
        return weighted(data, weights) if fills else data

    dataset = tf.data.Dataset.from_tensors(0).map(steps).unbatch()
    dataset = dataset.map(fetch, num_parallel_calls=2, deterministic=True)
    return dataset.prefetch(2)


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
