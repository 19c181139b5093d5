"""Notes of batches that pass through tf.data say which batches they are of."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from hvd_keras.data import _passing

NUM_BATCHES = 100


def noted(number: int) -> tuple[_passing.Notes, list[Any]]:
    notes = _passing.Notes()
    batches = tf.data.Dataset.range(NUM_BATCHES).batch(1).enumerate()
    batches = batches.map(lambda i, x: (x, _passing.sparse_note_of(x, i)))
    batches = notes.noted(batches, tf.constant(number, tf.int64))
    return notes, list(batches.as_numpy_iterator())


def test_notes_are_those_of_their_batches() -> None:
    notes, batches = noted(7)
    np.testing.assert_array_equal(np.ravel(batches), range(NUM_BATCHES))
    found = notes.fetch()
    assert {iteration for iteration, _ in found} == {7}
    firsts = [int(words.split()[1]) for _, words in found]
    assert firsts == [_passing.number_of(i) for i in range(len(found))]
    assert firsts[:17] == [*range(16), 31]
    assert firsts[-1] == 95


def test_nobody_gets_notes_that_nobody_wants() -> None:
    notes, batches = noted(-1)
    assert len(batches) == NUM_BATCHES
    assert notes.fetch() == []
