"""Gathers the gradients of embeddings: the slices that one process has."""

from __future__ import annotations

import tensorflow as tf

from hvd_keras._backends.options import ReduceOptions
from hvd_keras._backends.tensorflow_rows import parts_of
from hvd_keras.ops import _xla, grouped_allgather, size_op
from hvd_keras.ops._packed_rows import may_pack, pack, unpack
from hvd_keras.ops._slices import merged, wide_dtype
from hvd_keras.reduce_op import Average, Sum


def gather_slices(
    gradient: tf.IndexedSlices,
    options: ReduceOptions,
    *,
    name: str,
    factor: float = 1.0,
    seal: tuple[int, ...] | None = None,
) -> tf.IndexedSlices:
    """Returns the gradient of all ranks, with the slices of one process.

    `allreduce` merges slices that have the same index; this function does not.
    Keras's optimizers and `global_clipnorm` square such slices one by one. With
    merged slices, training would differ from one process on the whole batch.

    It merges those alone that one process has once for all rows, such as the
    slices of learned positions: each rank has them. With `merge_slices`, each
    rank merges all of its own. With `Compression.int8` and `int4` rows travel
    as int8 if the ranks are on several hosts.

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
    merges = options.merge_slices and not _xla.in_context()
    if merges:
        gradient = _merged_on_rank(gradient)
    values, context = options.compression.compress(gradient.values)
    parts = parts_of(tf.convert_to_tensor(gradient.indices))
    has_shared = not merges and any(is_once for _, is_once in parts)
    is_packed = may_pack(values, options.compression, options.process_set)
    members = [*(pack(values) if is_packed else [values]), gradient.indices]
    if has_shared:
        members.append(_uses(parts))
    if seal is not None:
        members.append(tf.zeros(seal, tf.int32))
    own = values
    values, *others = grouped_allgather(
        members, name=name, process_set=options.process_set
    )
    if is_packed:
        values = unpack(values, others.pop(0), own)
    indices, *others = others
    values = options.compression.decompress(values, context)
    if options.op == Average:
        size = size_op(options.process_set.process_set_id or 0)
        values = values / tf.cast(size, values.dtype)
    if factor != 1.0:
        values = values * tf.cast(factor, values.dtype)
    if has_shared:
        values, indices = _merged_uses(values, indices, others[0])
    elif not merges and all(is_once is None for _, is_once in parts):
        values, indices = _merged_if_alike(
            values, indices, int(options.process_set.size() or 1)
        )
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def _merged_on_rank(gradient: tf.IndexedSlices) -> tf.IndexedSlices:
    """Adds up the slices that have the same index."""
    indices, places = tf.unique(tf.convert_to_tensor(gradient.indices))
    dtype = gradient.values.dtype
    values = tf.math.unsorted_segment_sum(
        tf.cast(gradient.values, wide_dtype(dtype)), places, tf.size(indices)
    )
    values = tf.cast(values, dtype)
    return tf.IndexedSlices(values, indices, gradient.dense_shape)


def _uses(parts: list[tuple[tf.Tensor, bool | None]]) -> tf.Tensor:
    """Numbers the uses of each index; -1 where slices belong to rows."""
    indices = tf.concat([tf.cast(part, tf.int64) for part, _ in parts], axis=0)
    is_once = tf.concat(
        [tf.fill([tf.size(part)], bool(once)) for part, once in parts], axis=0
    )
    keys = tf.where(is_once, indices, -1)
    order = tf.argsort(keys, stable=True)
    in_order = tf.gather(keys, order)
    first = tf.searchsorted(in_order, in_order)
    uses = tf.range(tf.size(order)) - first
    uses = tf.gather(uses, tf.argsort(order))
    return tf.where(is_once, uses, -1)


def _merged_uses(
    values: tf.Tensor, indices: tf.Tensor, uses: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Merges the slices of all ranks that are the same use of an index."""
    count = tf.size(indices, tf.int64)
    keys = tf.where(
        uses >= 0,
        tf.cast(indices, tf.int64) * count + tf.cast(uses, tf.int64),
        -1 - tf.range(count),
    )
    dtype = values.dtype
    values, indices, num = merged(
        tf.cast(values, wide_dtype(dtype)), indices, keys
    )
    values = tf.cast(values, dtype)
    if _xla.in_context():  # it must know how many there are
        return values, indices
    return values[:num], indices[:num]


def _merged_if_alike(
    values: tf.Tensor, indices: tf.Tensor, size: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Merges slices if all ranks have the same indices, each of them once.

    No graph says what they depend on. Rows of a batch have such indices by rare
    chance; positions always have.
    """
    if _xla.in_context():
        return values, indices
    count = tf.size(indices) // size
    by_rank = tf.reshape(indices[: count * size], [size, count])
    in_order = tf.sort(by_rank[0])
    is_alike = (
        (count > 1)
        & (count * size == tf.size(indices))
        & tf.reduce_all(by_rank == by_rank[0])
        & tf.reduce_all(in_order[1:] != in_order[:-1])
    )
    dtype = values.dtype

    def merge() -> tuple[tf.Tensor, tf.Tensor]:
        shape = tf.concat([[size, count], tf.shape(values)[1:]], axis=0)
        wide = tf.cast(values, wide_dtype(dtype))
        total = tf.reduce_sum(tf.reshape(wide, shape), axis=0)
        return tf.cast(total, dtype), by_rank[0]

    both: tuple[tf.Tensor, tf.Tensor] = tf.cond(
        is_alike, merge, lambda: (values, indices)
    )
    return both
