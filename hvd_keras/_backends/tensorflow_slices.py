"""Gathers the gradients of embeddings: the slices of all ranks in a row."""

from __future__ import annotations

import tensorflow as tf

from hvd_keras._backends.options import ReduceOptions
from hvd_keras.ops import grouped_allgather, size_op
from hvd_keras.reduce_op import Average, Sum


def gather_slices(
    gradient: tf.IndexedSlices,
    options: ReduceOptions,
    *,
    name: str,
    factor: float = 1.0,
    seal: tuple[int, ...] | None = None,
) -> tf.IndexedSlices:
    """Returns the gradient of all ranks, unmerged.

    `allreduce` merges slices that have the same index; this function does not.
    Keras's optimizers and `global_clipnorm` square such slices one by one. With
    merged slices, training would differ from one process on the whole batch.

    Args:
        gradient: This rank's slices.
        options: How gradients are reduced.
        name: Pairs the call across ranks.
        factor: Multiplies the result.
        seal: Shape of an empty tensor that the ranks compare, if any.
    """
    if options.op not in (Average, Sum):
        raise NotImplementedError(
            "Gradients that are `tf.IndexedSlices`, such as those of "
            f"embeddings, must be reduced by Average or Sum. Received: op="
            f"{options.op.name} ({name!r}). Pass `sparse_as_dense=True`."
        )
    changes_values = options.op == Average or factor != 1.0
    if changes_values and not gradient.values.dtype.is_floating:
        raise NotImplementedError(
            "Gradients that are `tf.IndexedSlices` must have a floating dtype "
            "to be averaged or scaled: an integer would be rounded slice by "
            f"slice. Received: {gradient.values.dtype.name} ({name!r}). Pass "
            "`sparse_as_dense=True`."
        )
    values, context = options.compression.compress(gradient.values)
    members = [values, gradient.indices]
    if seal is not None:
        members.append(tf.zeros(seal, tf.int32))
    values, indices, *_ = grouped_allgather(
        members, name=name, process_set=options.process_set
    )
    values = options.compression.decompress(values, context)
    if options.op == Average:
        size = size_op(options.process_set.process_set_id or 0)
        values = values / tf.cast(size, values.dtype)
    if factor != 1.0:
        values = values * tf.cast(factor, values.dtype)
    return tf.IndexedSlices(values, indices, gradient.dense_shape)
