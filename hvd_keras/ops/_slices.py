"""The allreduce of `tf.IndexedSlices`, the gradients of embeddings.

Each rank first adds its slices that have the same index. Then the ranks gather
their indices. Now all know how many slices there are on all ranks together, and
how many different indices. There are two ways on:

- Dense: if an index is on two ranks or more on average, each rank makes a
  tensor with one row for each different index, and the ranks allreduce it. This
  then moves fewer bytes.
- Sparse: otherwise they gather the slices, and each rank adds them up.

Either way the result has each index once, in the same order on all ranks.

Both collectives are always called, one of them with no rows. A condition in the
graph would force the collectives of a function to run one after the other.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from hvd_keras.compression import Compressor
from hvd_keras.ops import _arguments, _errors, _xla
from hvd_keras.ops._emit import emit
from hvd_keras.ops._gradients import (
    Name,
    part_name,
    scaled,
)
from hvd_keras.ops.topology import size_op
from hvd_keras.reduce_op import Adasum, Average, ReduceOp, Sum


@dataclasses.dataclass(frozen=True)
class Reduction:
    """How slices are reduced: the checked arguments of the call."""

    op: ReduceOp
    prescale: float
    postscale: float
    compression: type[Compressor] | Compressor
    process_set_id: int


def allreduce_slices(
    members: list[tf.IndexedSlices], how: Reduction, *, name: Name
) -> list[tf.IndexedSlices]:
    """Returns `members` reduced over the ranks, all in the same requests."""
    for member in members:
        _check(member, how, name)
    if _xla.in_context():
        return _gathered(members, how, name)
    parts = [_Part(member, how) for member in members]
    on_all_ranks = emit(
        "grouped_allgather",
        [part.indices for part in parts],
        name=part_name(name, "indices"),
        process_set_id=how.process_set_id,
    )
    for part, all_indices in zip(parts, on_all_ranks, strict=True):
        part.plan(all_indices)
    gathered = emit(
        "grouped_allgather",
        [part.to_gather() for part in parts],
        name=part_name(name, "slices"),
        process_set_id=how.process_set_id,
    )
    reduced = emit(
        "grouped_allreduce",
        [part.to_reduce() for part in parts],
        name=part_name(name, "dense"),
        reduce_op=int(how.op),
        postscale_factor=repr(how.postscale),
        process_set_id=how.process_set_id,
    )
    return [
        part.result(rows, dense)
        for part, rows, dense in zip(parts, gathered, reduced, strict=True)
    ]


def _gathered(
    members: list[tf.IndexedSlices], how: Reduction, name: Name
) -> list[tf.IndexedSlices]:
    """Returns the slices of all ranks; slices with equal indices stay apart.

    XLA must know the number of slices before the ranks meet. So all ranks must
    give the same number. Integers that are averaged are merged, so that they
    are rounded once.
    """
    values, contexts = zip(
        *(how.compression.compress(member.values) for member in members),
        strict=True,
    )
    both = emit(
        "grouped_allgather",
        [*values, *(member.indices for member in members)],
        name=part_name(name, "slices"),
        process_set_id=how.process_set_id,
    )
    results = []
    for i, member in enumerate(members):
        gathered = how.compression.decompress(both[i], contexts[i])
        gathered = scaled(gathered, how.prescale * how.postscale)
        indices = both[len(members) + i]
        if how.op == Average:
            dtype = gathered.dtype
            if dtype.is_integer:
                gathered = tf.cast(gathered, wide_dtype(dtype))
                gathered, indices, _ = merged(gathered, indices, indices)
            gathered = _divided(gathered, how.process_set_id)
            gathered = tf.cast(gathered, dtype)
        results.append(tf.IndexedSlices(gathered, indices, member.dense_shape))
    return results


def merged(
    values: tf.Tensor, indices: tf.Tensor, keys: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Adds slices with equal keys; as many slices as before are left.

    Those that are left over are zeros with an index that another slice has.

    Returns:
        Values, indices, and how many of them are not left over. These come
        first, in the order of their keys.
    """
    order = tf.argsort(keys)
    keys = tf.gather(keys, order)
    indices = tf.gather(indices, order)
    is_new = tf.cast(keys[1:] != keys[:-1], tf.int32)
    places = tf.concat([tf.zeros_like(order[:1]), tf.cumsum(is_new)], axis=0)
    values = tf.math.unsorted_segment_sum(
        tf.gather(values, order), places, tf.size(order)
    )
    highest = tf.math.unsorted_segment_max(indices, places, tf.size(order))
    count = tf.reduce_sum(is_new) + tf.size(order[:1])
    return values, tf.maximum(highest, tf.reduce_min(indices)), count


def _divided(tensor: tf.Tensor, process_set_id: int) -> tf.Tensor:
    """Divides `tensor` by the number of ranks; rounds integers towards zero."""
    size = tf.cast(size_op(process_set_id), tensor.dtype)
    divide = tf.truncatediv if tensor.dtype.is_integer else tf.divide
    return divide(tensor, size)


class _Part:
    """One member of the group while it is reduced."""

    def __init__(self, slices: tf.IndexedSlices, how: Reduction) -> None:
        self._how = how
        self._dense_shape = slices.dense_shape
        # In eager code, values and indices may be arrays.
        own_values = tf.convert_to_tensor(slices.values)
        self._row_shape = own_values.shape[1:]
        self.dtype = own_values.dtype
        self.wide = wide_dtype(self.dtype)
        self.indices, positions = tf.unique(
            tf.convert_to_tensor(slices.indices)
        )
        values = tf.math.unsorted_segment_sum(
            tf.cast(own_values, self.wide),
            positions,
            tf.size(self.indices),
        )
        self._values = tf.cast(scaled(values, how.prescale), self.dtype)
        # `compression` needs these to undo what it did.
        self._gather_context: Any = None
        self._reduce_context: Any = None

    def plan(self, all_indices: tf.Tensor) -> None:
        """Chooses dense or sparse; all ranks choose the same."""
        self._union, self._positions = tf.unique(all_indices)
        num_rows = tf.size(self._union)
        # 1 for dense, 0 for sparse.
        self._dense = tf.cast(tf.size(all_indices) >= 2 * num_rows, tf.int32)
        self._num_dense = num_rows * self._dense
        self._num_sparse = num_rows * (1 - self._dense)
        self._num_gathered = tf.size(all_indices) * (1 - self._dense)

    def to_gather(self) -> tf.Tensor:
        """Returns this rank's input to the gather of slices."""
        values = self._values[: tf.size(self.indices) * (1 - self._dense)]
        wire, context = self._how.compression.compress(values)
        self._gather_context = context
        return wire

    def to_reduce(self) -> tf.Tensor:
        """Returns this rank's input to the dense allreduce."""
        num_values = tf.size(self.indices) * self._dense
        both = tf.concat([self._union, self.indices], axis=0)
        rows = tf.unique(both).idx[tf.size(self._union) :]
        values = tf.math.unsorted_segment_sum(
            self._values[:num_values], rows[:num_values], self._num_dense
        )
        wire, context = self._how.compression.compress(values)
        self._reduce_context = context
        return wire

    def result(
        self, gathered: tf.Tensor, reduced: tf.Tensor
    ) -> tf.IndexedSlices:
        """Returns the reduced member. One of the two arguments has no rows."""
        decompress = self._how.compression.decompress
        rows = tf.cast(decompress(gathered, self._gather_context), self.wide)
        summed = tf.math.unsorted_segment_sum(
            rows, self._positions[: self._num_gathered], self._num_sparse
        )
        if self._how.op == Average:
            summed = _divided(summed, self._how.process_set_id)
        summed = tf.cast(scaled(summed, self._how.postscale), self.dtype)
        values = tf.concat(
            [summed, decompress(reduced, self._reduce_context)], axis=0
        )
        values.set_shape([None, *self._row_shape])
        return tf.IndexedSlices(
            values, self._union, dense_shape=self._dense_shape
        )


def _check(slices: tf.IndexedSlices, how: Reduction, name: Name) -> None:
    where = f" (tensor '{name}')" if isinstance(name, str) else ""
    if how.op not in (Average, Sum):
        advice = ""
        if how.op == Adasum:
            advice = " Make it dense first, with `tf.convert_to_tensor`."
        raise NotImplementedError(
            f"An allreduce of `tf.IndexedSlices` must use Average or Sum. "
            f"Received: op={how.op.name}{where}.{advice}"
        )
    dtype = _arguments.to_tensor(slices.values, "tensor", None).dtype
    if dtype == tf.bool:
        raise _errors.invalid_argument(
            f"`tf.IndexedSlices` of bool have no sum. Received: op="
            f"{how.op.name}{where}."
        )
    if dtype.is_integer and (how.prescale, how.postscale) != (1.0, 1.0):
        raise NotImplementedError(
            f"`tf.IndexedSlices` of integers must be reduced without factors. "
            f"Received: prescale_factor={how.prescale}, postscale_factor="
            f"{how.postscale}{where}."
        )


def wide_dtype(dtype: tf.DType) -> tf.DType:
    """Returns the dtype of sums over the ranks, as in the dense allreduce."""
    if dtype.is_floating and dtype.size == 2:
        return tf.float32
    return tf.int64 if dtype.is_integer and dtype.size < 8 else dtype
