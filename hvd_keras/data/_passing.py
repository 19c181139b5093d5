"""Notes what passes through a tf.data pipeline, without Python in its way."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_keras._common.autograph import as_it_is

_NUM_VALUES = 8  # of each row
_MOST_VALUES = 1 << 14  # of a vector
_NUM_ROWS, _NUM_TENSORS = 3, 3  # that a note tells


class Notes:
    """The notes of iterations over one dataset."""

    def __init__(self) -> None:
        with tf.device("CPU:0"):
            self._queue = tf.queue.FIFOQueue(
                -1, [tf.int64, tf.string], [(), ()]
            )

    def noted(
        self, batches: tf.data.Dataset, number: tf.Tensor
    ) -> tf.data.Dataset:
        """Returns the batches of elements (batch, note), and keeps the notes.

        Args:
            batches: Those of an iteration.
            number: Its number; negative if nobody wants the notes.
        """

        @as_it_is
        def keep(batch: Any, note: tf.Tensor) -> Any:
            def put() -> tf.Tensor:
                with tf.control_dependencies(
                    [self._queue.enqueue([number, note])]
                ):
                    return tf.constant(True)

            is_kept = tf.cond(number >= 0, put, lambda: tf.constant(False))
            with tf.control_dependencies([is_kept]):
                return tf.nest.map_structure(
                    tf.identity, batch, expand_composites=True
                )

        return batches.map(keep)

    def fetch(self) -> list[tuple[int, str]]:
        """Returns the new notes, each with the number of its iteration."""
        count = int(self._queue.size())
        if not count:
            return []
        numbers, notes = self._queue.dequeue_many(count)
        return [
            (int(number), note.decode("utf-8", "replace"))
            for number, note in zip(numbers.numpy(), notes.numpy(), strict=True)
        ]


def note_of(batch: Any) -> tf.Tensor:
    """Returns a text scalar: a checksum of a batch, and its first values."""
    # Few ops: each costs a microsecond or two of the thread that reads.
    tensors = tf.nest.flatten(batch, expand_composites=True)
    checksums = [
        tf.fingerprint(tf.reshape(_sample_of(tensor), [1, -1]))
        for tensor in tensors
    ]
    checksum = tf.fingerprint(tf.concat(checksums, axis=1))
    number = tf.strings.as_string(tf.bitcast(checksum, tf.int64))[0]
    dense = [
        tensor
        for tensor in tf.nest.flatten(batch)
        if isinstance(tensor, tf.Tensor)
    ]
    shown = [_first_values_of(tensor) for tensor in dense[:_NUM_TENSORS]]
    if not shown:
        return number
    rows = tf.strings.join(shown, separator=", ")
    words = tf.strings.reduce_join(rows, separator="; ")
    return tf.strings.join([number, " ", words])


def _sample_of(tensor: tf.Tensor) -> tf.Tensor:
    """Returns some values of each row."""
    width = _width_of(tensor)
    if width is not None:
        if width <= _NUM_VALUES:
            return tensor
        rows = tf.reshape(tensor, [-1, width])
        return rows[:, :: 1 + width // _NUM_VALUES]
    if tensor.shape.rank is not None and tensor.shape.rank < 2:
        return tensor[:: 1 + tf.size(tensor) // _MOST_VALUES]
    shape = tf.shape(tensor)
    size = tf.reduce_prod(shape[1:])
    rows = tf.reshape(tensor, tf.stack([shape[0], size]))
    return rows[:, :: 1 + size // _NUM_VALUES]


def _width_of(tensor: tf.Tensor) -> int | None:
    """Returns the values of a row; None if unknown, or if there are none."""
    if tensor.shape.rank is None or tensor.shape.rank < 2:
        return None
    width: int | None = tensor.shape[1:].num_elements()
    return width or None


def _first_values_of(tensor: tf.Tensor) -> tf.Tensor:
    """Returns the first values of the first rows, as texts."""
    rows = tensor[:_NUM_ROWS]
    if tensor.shape.rank == 1:
        return _texts_of(rows)
    if _width_of(tensor) is not None:
        first = (slice(None), *[0] * (tensor.shape.rank - 1))
        return _texts_of(rows[first])
    shape = tf.shape(rows)
    rows = tf.reshape(rows, tf.stack([shape[0], tf.reduce_prod(shape[1:])]))
    # A row may have no value.
    return tf.strings.reduce_join(_texts_of(rows[:, :1]), axis=1)


def _texts_of(values: tf.Tensor) -> tf.Tensor:
    if values.dtype.is_floating:
        values = tf.cast(values, tf.float32)
        return tf.strings.as_string(values, precision=4, shortest=True)
    if values.dtype.is_integer or values.dtype.is_bool:
        return tf.strings.as_string(values)
    if values.dtype == tf.string:
        return values
    return tf.fill(tf.shape(values), "?")
