"""Begins as many passes over a share as Keras does over all data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import tensorflow as tf

from hvd_keras.data import _sources
from hvd_keras.data._deal import Deal
from hvd_keras.data.position import Handle

if TYPE_CHECKING:
    from hvd_keras.data._datasets import Source


class _Share:
    """Mixin: makes `fit` of Keras begin as many passes as over all data.

    Keras (3.15, on TensorFlow) makes one iterator more after each epoch if it
    knows how many batches there are, and never reads it. What shuffles anew in
    each pass is in another order then.
    """

    _hvd_handle: Handle

    def __iter__(self) -> Any:
        if tf.executing_eagerly():
            self._hvd_handle.note_iterator()
        return super().__iter__()  # type: ignore[misc]

    def cardinality(self) -> tf.Tensor:
        handle = self._hvd_handle
        if handle.whole_steps is None or not handle.begins_whole:
            return super().cardinality()  # type: ignore[misc]
        return tf.constant(handle.whole_steps, tf.int64)


def as_share(dataset: tf.data.Dataset, handle: Handle) -> tf.data.Dataset:
    """Returns a dataset, which tells Keras of steps and hears of passes."""
    base = type(dataset)
    # Its memory has another layout than that of `base`.
    share: Any = object.__new__(type(base.__name__, (_Share, base), {}))
    vars(share).update(vars(dataset), _hvd_handle=handle)
    return share


def num_steps_of(source: Source, deal: Deal) -> int | None:
    """Returns the steps of an epoch of batches; None if unknown."""
    count = int(source.first.cardinality())
    if not source.is_fixed or deal.is_elastic or count < 0:
        return None
    if deal.keeps_batches and not deal.joins_rest:
        return count
    lengths = _sources.rows_of(source.first).lengths
    if lengths is None or not lengths.runs:
        return None
    if not deal.keeps_batches:
        return deal.num_steps(lengths.num_rows)
    *before, (num_last, last) = lengths.runs
    if last < deal.fewest_rows:  # it goes to the step before
        if num_last > 1 or not lengths.is_ordered:
            return None
        count -= 1
    is_exact = all(size >= deal.fewest_rows for _, size in before)
    return count if is_exact else None
