"""Notes what passes through a tf.data pipeline, without Python in its way."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_keras import _core, _native
from hvd_keras._common.python_calls import call_on_arrays
from hvd_keras.data._tracing import unoptimized

_pipelines = itertools.count()


class Notes:
    """The notes of iterations over one dataset.

    An op of ours makes them: dozens of TensorFlow's would cost a tenth of a
    short step.
    """

    def __init__(self) -> None:
        self._pipeline = next(_pipelines)
        self._number = -1
        # Gets notes that nobody has fetched, at the end.
        self._heirs: list[Callable[[int, str], Any]] = []
        done = weakref.finalize(self, _leave, self._pipeline, self._heirs)
        done.atexit = False

    def leave_to(self, heir: Callable[[int, str], Any]) -> None:
        """Gives notes to `heir` when the dataset is dropped."""
        self._heirs.append(heir)

    def begin(self, number: int) -> None:
        """Begins an iteration; its number is negative if nobody wants notes."""
        self._number = number

    def numbered(self, batches: tf.data.Dataset) -> tf.data.Dataset:
        """Returns elements (number of the iteration, batch)."""

        @unoptimized
        def number_of(_: tf.Tensor) -> tf.Tensor:
            (number,) = call_on_arrays(
                lambda: np.int64(self._number), [], [tf.int64]
            )
            return tf.ensure_shape(number, [])

        # Once an iteration, when it reads its first batch.
        numbers = tf.data.Dataset.from_tensors(0).map(number_of)
        numbers = numbers.flat_map(
            unoptimized(
                lambda number: tf.data.Dataset.from_tensors(number).repeat()
            )
        )
        return tf.data.Dataset.zip(numbers, batches)

    def note(self, number: tf.Tensor, batch: Any) -> None:
        """Notes a checksum of a batch, and its first values, in a graph."""
        dense = [
            tensor
            for tensor in tf.nest.flatten(batch)
            if isinstance(tensor, tf.Tensor)
        ]
        others = [
            tensor
            for each in tf.nest.flatten(batch)
            if not isinstance(each, tf.Tensor)
            for tensor in tf.nest.flatten(each, expand_composites=True)
        ]
        _native.ops().horovod_note_batch(
            number,
            dense + others,
            pipeline=self._pipeline,
            num_shown=len(dense),
        )

    def fetch(self) -> list[tuple[int, str]]:
        """Returns the new notes, each with the number of its iteration."""
        return _taken(self._pipeline)


def _taken(pipeline: int) -> list[tuple[int, str]]:
    return [
        (number, note.decode("utf-8", "replace"))
        for number, note in _core.take_batch_notes(pipeline)
    ]


def _leave(pipeline: int, heirs: list[Callable[[int, str], Any]]) -> None:
    for number, note in _taken(pipeline):
        for heir in heirs:
            heir(number, note)
