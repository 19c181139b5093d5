"""Endless rows that are shuffled, in an order of the number of the pass."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import tensorflow as tf

from hvd_keras._common.python_calls import call_for_variant
from hvd_keras.data import _looks, _shuffles, _sources
from hvd_keras.data._numbered import Rows
from hvd_keras.data._tracing import unoptimized


def of(dataset: tf.data.Dataset, *, batched: bool) -> Redrawn | None:
    """Returns the rows of a dataset, or of its batches.

    None if a stage that shuffles, or a `cache` of one, stays the user's own.
    """
    if _shuffles.keeps_an_order(dataset):
        return None
    known: _sources.Stages = {}
    found = _rows_of(dataset, batched, 0, known)
    if found is None:
        return None
    return Redrawn(dataset, batched, found, known)


def _rows_of(
    dataset: Any, batched: bool, num_draws: int, known: _sources.Stages
) -> Rows | None:
    shuffles = _shuffles.reshuffling(dataset)
    with _looks.after(num_draws) as followed, _sources.knowing(known):
        found = _sources.late_rows_of(
            dataset, batched=batched, is_fixed=True, always=True
        )
    if found is None or not {*map(id, followed)} >= {*map(id, shuffles)}:
        return None
    is_left = _shuffles.is_made_of(found.numbers, shuffles)
    return None if is_left else found


class Redrawn:
    """Rows of which each pass begins as if each before had drawn one order.

    What shuffles is made anew for each pass.

    Args:
        dataset: The user's.
        batched: Whether its elements are batches.
        first: The rows of its first pass.
        known: Its stages, as they are in that.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        batched: bool,
        first: Rows,
        known: _sources.Stages,
    ) -> None:
        self._dataset, self._batched, self._first = dataset, batched, first
        self._made_once = {
            key: (stage, of_stage)
            for key, (stage, of_stage) in known.items()
            if not _shuffles.reshuffling(stage)
        }
        self._num_passes = 0  # that have begun
        self._changing = threading.Lock()
        # TensorFlow drops functions of a dataset that Python has dropped.
        self._running: list[tf.data.Dataset] = []
        spec = first.numbers.element_spec

        @unoptimized
        def of_pass(_: tf.Tensor) -> tf.data.Dataset:
            variant = call_for_variant(self._begin)
            return tf.data.experimental.from_variant(variant, spec)

        numbers = tf.data.Dataset.from_tensors(0).flat_map(of_pass)
        self.rows = dataclasses.replace(first, numbers=numbers)

    def pass_over(self, count: int) -> None:
        """Counts passes that nobody reads."""
        with self._changing:
            self._num_passes += count

    def _begin(self) -> tf.Tensor:
        with self._changing:
            number = self._num_passes
            self._num_passes += 1
        known = dict(self._made_once)
        found = _rows_of(self._dataset, self._batched, number, known)
        # Files of records may have gone since; reading them tells.
        numbers = (found or self._first).numbers
        if _shuffles.has_rewritten_repeat(self._dataset):
            numbers = _shuffles.rewritten(numbers)
        self._running[:] = [*self._running[-3:], numbers]
        return numbers._variant_tensor
