"""Checks that the rows of an epoch come in the same order again.

A `tf.data.Dataset` has no random access, and may be shuffled anew whenever it
is iterated over. So the first rows of an epoch are noted, and compared when
the rows before a position are skipped.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from itertools import chain, islice
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_keras._common.python_calls import call_on_arrays
from hvd_keras.data import _rows
from hvd_keras.data._pass import Pass
from hvd_keras.data._tracing import unoptimized

_NUM_ROWS = 4
_NUM_SKIPPED = 4096  # numbers at once


def noted(
    batches: tf.data.Dataset, note: Callable[[str], None]
) -> tf.data.Dataset:
    """Returns the batches; passes a checksum of the first rows to `note`."""

    def look(step: tf.Tensor, *batch: Any) -> Any:
        def told() -> tf.Tensor:
            flat = tf.nest.flatten(batch)
            num_rows = tf.minimum(_rows.num_rows_of(flat[0]), _NUM_ROWS)
            values = [_first_of(tensor, num_rows) for tensor in flat]
            counts = [len(each) for each in values]

            def tell(num_rows: Any, *found: Any) -> Any:
                left = iter(found)
                rows = [_by_row([*islice(left, count)]) for count in counts]
                checksums = [
                    _checksum_of([each[row] for each in rows])
                    for row in range(int(num_rows))
                ]
                note(" ".join(checksums))
                return num_rows

            tensors = [num_rows, *chain(*values)]
            (told,) = call_on_arrays(tell, tensors, [tf.int64])
            return tf.ensure_shape(told, [])

        is_first = tf.equal(step, 0)
        told_rows = tf.cond(is_first, told, lambda: tf.zeros([], tf.int64))
        with tf.control_dependencies([told_rows]):
            batch = tf.nest.map_structure(
                tf.identity, batch, expand_composites=True
            )
        return batch if len(batch) > 1 else batch[0]

    return batches.enumerate().map(
        unoptimized(lambda step, batch: look(step, *_parts(batch)))
    )


def left_batches(
    rows: tf.data.Dataset,
    part: Pass,
    make: Callable[[tf.data.Dataset], tf.data.Dataset],
) -> tf.data.Dataset:
    """Returns batches of the rows from the first one of a pass on.

    The dataset ends with an InvalidArgumentError if the rows before differ
    from those that the epoch began with.

    Args:
        rows: The rows of the epoch.
        part: The pass.
        make: Makes batches of rows.
    """
    known = part.first_rows.split()

    def compare(index: Any, *values: Any) -> Any:
        if _checksum_of(values) != known[int(index)]:
            raise ValueError(_other_order(part, int(index)))
        return np.False_

    @unoptimized
    def is_left(index: tf.Tensor, row: Any) -> tf.Tensor:
        def compared() -> tf.Tensor:
            values = [_values_of(part) for part in tf.nest.flatten(row)]
            (same,) = call_on_arrays(compare, [index, *values], [tf.bool])
            return tf.ensure_shape(same, [])

        is_known = index < min(len(known), part.first)
        return tf.cond(is_known, compared, lambda: index >= part.first)

    # The numbers stay until rows are batches: `map` makes a dense tensor of a
    # ragged row, and those make no batch.
    batches = make(rows.enumerate().filter(is_left))
    return batches.map(unoptimized(lambda indices, batch: batch))


def left_numbers(numbers: tf.data.Dataset, part: Pass) -> tf.data.Dataset:
    """Returns what stands for the rows from the first one of a pass on.

    A function for each would take longer than all that is left to do.

    The dataset ends with an InvalidArgumentError as that of `left_batches`.
    """
    known = part.first_rows.split()[: part.first]

    def compare(place: Any, *values: Any) -> Any:
        for index, checksum in enumerate(known):
            if _checksum_of(values[index :: len(known)]) != checksum:
                raise ValueError(_other_order(part, index))
        return place

    @unoptimized
    def left_of(place: tf.Tensor, chunk: Any) -> tf.data.Dataset:
        flat = tf.nest.flatten(chunk)

        def compared() -> tf.Tensor:
            values = [
                _values_of(tensor[index])
                for tensor in flat
                for index in range(len(known))
            ]
            (same,) = call_on_arrays(compare, [place, *values], [tf.int64])
            return tf.ensure_shape(same, [])

        same = tf.cond(tf.equal(place, 0), compared, lambda: place)
        with tf.control_dependencies([same]):
            begin = tf.clip_by_value(
                part.first - place * _NUM_SKIPPED,
                0,
                tf.shape(flat[0], tf.int64)[0],
            )
            left = [tensor[begin:] for tensor in flat]
        return tf.data.Dataset.from_tensor_slices(
            tf.nest.pack_sequence_as(chunk, left)
        )

    return numbers.batch(_NUM_SKIPPED).enumerate().flat_map(left_of)


def told(
    elements: tf.data.Dataset, note: Callable[[str], None]
) -> tf.data.Dataset:
    """Returns the elements; passes a checksum of the first one to `note`."""

    def tell(place: Any, *values: Any) -> Any:
        note(_checksum_of(values))
        return place

    return _seeing_first(elements, tell)


def as_before(elements: tf.data.Dataset, part: Pass) -> tf.data.Dataset:
    """Returns the elements of a pass that goes on in the middle of an epoch.

    The dataset ends with an InvalidArgumentError if the first element is not
    the one that was told.
    """
    known = part.first_rows.split()

    def compare(place: Any, *values: Any) -> Any:
        if known and _checksum_of(values) != known[0]:
            raise ValueError(_other_order(part, 0))
        return place

    return _seeing_first(elements, compare)


def _seeing_first(
    elements: tf.data.Dataset, see: Callable[..., Any]
) -> tf.data.Dataset:
    """Returns the elements; `see` gets a 0 and the values of the first one."""

    @unoptimized
    def look(place: tf.Tensor, element: Any) -> Any:
        def seen() -> tf.Tensor:
            values = [_values_of(part) for part in tf.nest.flatten(element)]
            (result,) = call_on_arrays(see, [place, *values], [tf.int64])
            return tf.ensure_shape(result, [])

        is_seen = tf.cond(tf.equal(place, 0), seen, lambda: place)
        with tf.control_dependencies([is_seen]):
            return tf.nest.map_structure(tf.identity, element)

    return elements.enumerate().map(look)


def _other_order(part: Pass, index: int) -> str:
    return (
        "`data` must give the rows of an epoch in the same order again, to go "
        f"on after row {part.first} of epoch {part.epoch}. Received: another "
        f"row {index}. Pass `reshuffle_each_iteration=False` to `shuffle`, or "
        "give `hvd.shard` a function that makes the dataset of an epoch."
    )


def _parts(batch: Any) -> tuple[Any, ...]:
    return batch if isinstance(batch, tuple) else (batch,)


def _first_of(tensor: Any, num_rows: tf.Tensor) -> list[tf.Tensor]:
    """Returns the first rows: as one tensor, or the values of each row."""
    if isinstance(tensor, tf.Tensor):
        return [tensor[:num_rows]]
    places = [tf.range(num_rows)[row : row + 1] for row in range(_NUM_ROWS)]
    return [_values_of(_rows.taken(tensor, place)) for place in places]


def _by_row(found: list[Any]) -> list[Any]:
    """Returns the values of each row, of what `_first_of` has given."""
    if len(found) > 1:
        return found
    (rows,) = found
    return [rows[at : at + 1].reshape(-1) for at in range(len(rows))]


def _values_of(tensor: Any) -> tf.Tensor:
    """Returns all values in a vector: a single text would be no array."""
    if isinstance(tensor, tf.RaggedTensor):
        tensor = tensor.flat_values
    elif isinstance(tensor, tf.SparseTensor):
        tensor = tensor.values
    return tf.reshape(tensor, [-1])


def _checksum_of(values: Any) -> str:
    number = 0
    for value in values:
        if value.dtype == object:  # texts
            data = b"".join(value.tolist())
        else:
            data = value.tobytes()
        number = zlib.crc32(data, number)
    return f"{number:08x}"
