"""Gives fewer rows than ranks to the step before."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_keras.data import _rows
from hvd_keras.data._deal import Deal
from hvd_keras.data._tracing import unoptimized


def with_small_rest(batches: tf.data.Dataset, deal: Deal) -> tf.data.Dataset:
    """Appends a last batch with fewer rows than ranks to the one before it.

    Each batch waits for the next one. An empty batch marks the end.
    """
    spec = batches.element_spec
    empty = tf.nest.map_structure(_rows.empty, spec)

    # The state of a scan may hold dense tensors alone.
    @unoptimized
    def parts_of(batch: Any) -> tuple[tf.Tensor, ...]:
        return tuple(tf.nest.flatten(batch, expand_composites=True))

    @unoptimized
    def batch_of(*parts: tf.Tensor) -> Any:
        return tf.nest.pack_sequence_as(spec, parts, expand_composites=True)

    @unoptimized
    def step(state: Any, parts: Any) -> tuple[Any, Any]:
        waiting, batch = batch_of(*state), batch_of(*parts)

        def joined() -> Any:
            both = tf.nest.map_structure(_rows.concatenated, waiting, batch)
            return parts_of(batch_of_none(batch)), parts_of(both)

        def passed() -> Any:
            return parts, state

        is_first = tf.equal(num_rows_in(waiting), 0)
        is_small = num_rows_in(batch) < deal.fewest_rows
        # The mark of the end may have rows of no length.
        is_mark = tf.equal(num_rows_in(batch), 0)
        return tf.cond(is_small & ~is_first & ~is_mark, joined, passed)

    def batch_of_none(batch: Any) -> Any:
        none = tf.zeros([0], tf.int64)
        return tf.nest.map_structure(lambda t: _rows.taken(t, none), batch)

    marked = batches.concatenate(tf.data.Dataset.from_tensors(empty))
    parts = marked.map(unoptimized(lambda *batch: parts_of(batch)))
    scanned = parts.scan(parts_of(empty), step)
    return scanned.map(batch_of).filter(has_rows)


@unoptimized
def has_rows(*batch: Any) -> tf.Tensor:
    return num_rows_in(batch) > 0


def num_rows_in(batch: Any) -> tf.Tensor:
    return _rows.num_rows_of(tf.nest.flatten(batch)[0])
