"""Cuts a rank's rows out of batches that the user's pipeline makes.

A batch is made on the ranks alone that have rows of it, see `_sources`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from hvd_keras._common.autograph import as_it_is
from hvd_keras.data import _first_rows as first_rows
from hvd_keras.data import _passing, _sources
from hvd_keras.data._deal import FILLING, Deal
from hvd_keras.data._lengths import ENDLESS
from hvd_keras.data._pass import Pass
from hvd_keras.data._tracing import unoptimized


def can_cut(late: _sources.Rows, part: Pass) -> bool:
    """Whether the rows of each rank follow on each other in a pass."""
    deal, rest = part.deal, _rows_left(late, part) % part.deal.global_size
    if deal.policy == "pad" and rest:
        return False  # copies of other rows fill the last batch
    return not deal.num_joined(rest)


def noted(
    late: _sources.Rows, part: Pass, note_first_rows: Callable[[str], None]
) -> tf.data.Dataset:
    """Returns what stands for batches, in the order of the epoch.

    The first one is noted, or compared with what was noted.
    """
    if part.first:
        return first_rows.as_before(late.numbers, part)
    return first_rows.told(late.numbers, note_first_rows)


def own_rows(
    late: _sources.Rows,
    part: Pass,
    notes: _passing.Notes,
    note_first_rows: Callable[[str], None],
    note_rows: Callable[[tf.Tensor], tf.Tensor] | None,
) -> tf.data.Dataset:
    """Returns this rank's rows, each with its weight, in order.

    Args:
        late: Batches, to be read when their rows are dealt.
        part: The pass.
        notes: Get what ranks compare.
        note_first_rows: Gets a checksum of what comes first.
        note_rows: Gets the rows of a global batch that is not full.
    """
    count_of = late.count
    assert count_of is not None
    num_left = _rows_left(late, part)
    own_of = _own_places(part.deal, num_left)

    @as_it_is
    def placed(end: tf.Tensor, number: Any) -> Any:
        count = count_of(number)
        return end + count, (end, count, number)

    @unoptimized
    def own(begin: tf.Tensor, count: tf.Tensor, number: Any) -> Any:
        rows = tf.range(begin, begin + count) - part.first
        places, weights = own_of(rows)
        if note_rows is not None:
            rest = tf.constant(num_left % part.deal.global_size, tf.int64)
            tf.cond(
                tf.equal(begin + count, part.first + num_left) & (rest > 0),
                lambda: note_rows(rest),
                lambda: rest,
            )
        return number, places, weights

    @unoptimized
    def own_noted(iteration: tf.Tensor, parts: Any) -> Any:
        notes.note(iteration, parts)
        return own(*parts)

    @as_it_is
    def read(number: Any, places: tf.Tensor, weights: tf.Tensor) -> Any:
        def rows_of(tensor: tf.Tensor) -> tf.Tensor:
            same = tf.debugging.assert_equal(
                tf.shape(tensor, tf.int64)[0],
                count_of(number),
                "What changes batches before `hvd.shard(..., batched=True)` "
                "must keep their number of rows. Give the result of "
                "`hvd.shard` to `map` instead.",
            )
            with tf.control_dependencies([same]):
                return tf.gather(tensor, places)

        return tf.nest.map_structure(rows_of, late.read(number)), weights

    numbers = noted(late, part, note_first_rows)
    batches = numbers.scan(tf.constant(0, tf.int64), placed)
    if part.deal.size == 1:
        batches = batches.map(own)
    else:
        batches = notes.numbered(batches).map(own_noted)
    batches = batches.filter(
        unoptimized(lambda number, places, weights: tf.size(places) > 0)
    )
    made = batches.map(
        read, num_parallel_calls=max(late.num_calls, 2), deterministic=True
    )
    return made.unbatch()


def _rows_left(late: _sources.Rows, part: Pass) -> int:
    lengths = late.lengths
    assert lengths is not None
    if lengths.is_endless:
        return ENDLESS * part.deal.global_size
    return max(lengths.num_rows - part.first, 0)


def _own_places(
    deal: Deal, num_rows: int
) -> Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]:
    """Returns what tells which of some rows of a pass are this rank's."""
    steps, rest = divmod(num_rows, deal.global_size)
    full = steps * deal.global_size
    begin, end = deal.bounds(deal.global_size)
    own, weights = deal.own_rows(0 if deal.policy == "drop" else rest)
    last = len(own) if rest else 0
    first = full + (int(own[0]) if last else 0)
    weight = float(weights[0]) if last else FILLING

    def own_of(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        place = rows % deal.global_size
        is_full = (rows >= 0) & (rows < full)
        is_full &= (place >= begin) & (place < end)
        is_last = (rows >= first) & (rows < first + last)
        places = tf.where(is_full | is_last)[:, 0]
        is_rest = tf.gather(is_last, places)
        return places, tf.where(is_rest, weight, 1.0)

    return own_of
