"""The rows of dense, ragged and sparse tensors."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

Tensor = Any  # tf.Tensor, tf.RaggedTensor or tf.SparseTensor
SPECS = (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)


def num_rows_of(tensor: Tensor) -> tf.Tensor:
    """Returns the number of rows, an int64 scalar."""
    if isinstance(tensor, tf.RaggedTensor):
        return tf.cast(tensor.nrows(), tf.int64)
    if isinstance(tensor, tf.SparseTensor):
        return tensor.dense_shape[0]
    return tf.shape(tensor, tf.int64)[0]


def taken(tensor: Tensor, places: tf.Tensor) -> Tensor:
    """Returns some rows; in a sparse tensor, entries are in order of row.

    Args:
        tensor: The tensor.
        places: A vector of row numbers.
    """
    if not isinstance(tensor, tf.SparseTensor):
        return tf.gather(tensor, places)
    places = tf.cast(places, tf.int64)
    row_of_entry = tensor.indices[:, 0]
    entries = tf.ragged.range(
        tf.searchsorted(row_of_entry, places, side="left", out_type=tf.int64),
        tf.searchsorted(row_of_entry, places, side="right", out_type=tf.int64),
    )
    indices = tf.gather(tensor.indices, entries.flat_values)
    rows = tf.cast(entries.value_rowids(), tf.int64)
    count = tf.size(places, tf.int64)
    return tf.SparseTensor(
        tf.concat([rows[:, None], indices[:, 1:]], axis=1),
        tf.gather(tensor.values, entries.flat_values),
        tf.concat([count[None], tensor.dense_shape[1:]], axis=0),
    )


def concatenated(first: Tensor, second: Tensor) -> Tensor:
    """Returns the rows of both, which must have one shape where it is fixed."""
    if isinstance(first, tf.SparseTensor):
        return tf.sparse.concat(0, [first, second], expand_nonconcat_dims=True)
    if isinstance(first, tf.Tensor):
        same = tf.debugging.assert_equal(
            tf.shape(first)[1:],
            tf.shape(second)[1:],
            "The last rows of `data`, fewer than ranks, must have the shape of "
            "those before, for they join their batch: there are no targets, so "
            "no weights that tell which rows count. Pass policy='drop' to "
            "`hvd.shard`, or make rows of one shape.",
        )
        with tf.control_dependencies([same]):
            return tf.concat([first, second], 0)
    return tf.concat([first, second], 0)


def empty(spec: Any) -> Tensor:
    """Returns a tensor without rows that fits a spec of a batch."""
    if spec.shape.rank is None:
        return tf.zeros([0], spec.dtype)
    shape = [0, *(length or 0 for length in spec.shape[1:])]
    if isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank:
        inner = [0, *(n or 0 for n in spec.shape[spec.ragged_rank + 1 :])]
        splits = tf.zeros([1], spec.row_splits_dtype)
        return tf.RaggedTensor.from_nested_row_splits(
            tf.zeros(inner, spec.dtype), [splits] * spec.ragged_rank
        )
    if isinstance(spec, tf.SparseTensorSpec):
        return tf.SparseTensor(
            tf.zeros([0, len(shape)], tf.int64),
            tf.zeros([0], spec.dtype),
            tf.constant(shape, tf.int64),
        )
    return tf.zeros(shape, spec.dtype)
