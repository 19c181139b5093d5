"""Arrays, cut into the batches of a rank."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_keras._autograph import as_it_is
from hvd_keras.data._deal import Deal, weighted

_NUM_PROBES = 16  # rows that ranks compare


def to_tensors(data: Any) -> Any:
    """Returns the same structure with tensors in host memory.

    Lists become tuples: tf.data takes a list for one tensor.

    Raises:
        ValueError: There is no array, or they have different numbers of rows.
    """
    return _checked(_to_tensors(data))


def num_rows_of(tensors: Any) -> int:
    """Returns the length of the first dimension of all the tensors."""
    return int(tf.nest.flatten(tensors)[0].shape[0])


def describe(tensors: Any) -> list[Any]:
    """What must be equal on all ranks: types, shapes, and some of the rows."""
    num_rows = num_rows_of(tensors)
    probes = np.linspace(0, num_rows, _NUM_PROBES, endpoint=False, dtype=int)
    probes = np.unique(probes)[:num_rows]
    description = []
    for tensor in tf.nest.flatten(tensors):
        checksum = checksum_of(tf.gather(tensor, probes).numpy())
        description.append([tensor.dtype.name, list(tensor.shape), checksum])
    return description


def checksum_of(array: Any) -> int:
    """Returns a number that another array is unlikely to have."""
    if array.dtype == object:  # texts
        return zlib.crc32(repr(array.tolist()).encode())
    return zlib.crc32(array.tobytes())


def shard_arrays(
    tensors: Any, deal: Deal, *, shuffle: bool, seed: int
) -> tf.data.Dataset:
    """Returns this rank's batches; each iteration is an epoch.

    Args:
        tensors: As from `to_tensors`, equal on all ranks.
        deal: Whose rows are whose.
        shuffle: Whether rows come in another order in each epoch.
        seed: With the number of the epoch, decides on the order.
    """
    num_rows = num_rows_of(tensors)
    num_steps = deal.num_global_steps(num_rows)
    full = deal.global_size
    last = num_steps * full if deal.policy == "drop" else num_rows
    epochs = itertools.count()

    def next_order() -> Any:
        # Of NumPy: TensorFlow mixes its global seed, which may differ by rank,
        # into each of its own.
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
        places, weights = deal.own(tf.size(rows, tf.int64))
        own = tf.gather(rows, places)
        if deal.is_static(num_rows):
            own = tf.ensure_shape(own, [deal.batch_size])
            weights = tf.ensure_shape(weights, [deal.batch_size])
        data = tf.nest.map_structure(lambda t: tf.gather(t, own), tensors)
        return weighted(data, weights) if deal.may_pad(num_rows) else data

    dataset = tf.data.Dataset.from_tensors(0).map(order_of_epoch)
    dataset = dataset.flat_map(batches_of)
    dataset = dataset.map(fetch, num_parallel_calls=2, deterministic=True)
    count = tf.data.experimental.assert_cardinality(deal.num_steps(num_rows))
    return dataset.apply(count).prefetch(2)


def _to_tensors(data: Any) -> Any:
    if isinstance(data, list | tuple) and not _is_vector(data):
        return tuple(_to_tensors(part) for part in data)
    if isinstance(data, dict):
        return {key: _to_tensors(part) for key, part in data.items()}
    with tf.device("CPU:0"):
        return tf.convert_to_tensor(data)


def _is_vector(data: Any) -> bool:
    return all(isinstance(part, int | float | str | bytes) for part in data)


def _checked(tensors: Any) -> Any:
    flat = tf.nest.flatten(tensors)
    shapes = [tuple(tensor.shape) for tensor in flat]
    lengths = {shape[0] if shape else None for shape in shapes}
    if len(lengths) != 1 or None in lengths:
        raise ValueError(
            "`data` must be arrays with the same number of rows, their first "
            f"dimension. Received: arrays of shapes {shapes}."
        )
    return tensors
