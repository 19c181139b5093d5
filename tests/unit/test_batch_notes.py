"""What a tf.data pipeline notes of its batches."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_keras.data._passing import Notes


def notes_of(*batches, iteration: int = 0) -> list[tuple[int, str]]:
    """Returns the notes of a pipeline's batches."""
    notes = Notes()

    @tf.function(autograph=False)
    def note(number, batch):
        notes.note(number, batch)

    for batch in batches:
        note(tf.constant(iteration, tf.int64), batch)
    return notes.fetch()


def words_of(batch) -> str:
    [(_, note)] = notes_of(batch)
    return note.partition(" ")[2]


def checksums_of(*batches) -> list[str]:
    return [note.partition(" ")[0] for _, note in notes_of(*batches)]


@pytest.mark.parametrize(
    "dtype",
    "float64 float32 float16 bfloat16 int8 uint8 int16 uint16 int32 uint32 "
    "int64 uint64".split(),
)
def test_shows_the_first_value_of_the_first_rows(dtype):
    values = tf.cast([[1, 9], [20, 9], [3, 9], [4, 9]], dtype)
    assert words_of(values) == "1, 20, 3"


def test_shows_three_tensors():
    batch = {"a": [0.123456, 2], "b": [True, False], "c": ["x", "äß"]}
    batch = {name: tf.constant(values) for name, values in batch.items()}
    assert words_of((batch, tf.constant([7, 8]))) == (
        "0.1235, 2; true, false; x, äß"
    )


def test_shows_dense_tensors_before_ragged_ones():
    ragged = tf.ragged.constant([[5], [6, 7]])
    assert words_of((ragged, tf.constant([1, 2]))) == "1, 2"


def test_shows_a_question_mark_for_other_types():
    assert words_of(tf.constant([1j, 2j])) == "?, ?"


@pytest.mark.parametrize("shape", [[0], [0, 3], [4, 0], [2, 0, 3]])
def test_takes_batches_without_values(shape):
    [(_, note)] = notes_of(tf.zeros(shape))
    assert note.partition(" ")[2] == ""


def test_equal_batches_have_equal_checksums():
    batch = tf.random.normal([5, 3, 2]), tf.constant(list("abcde"))
    first, second = checksums_of(
        batch, tf.nest.map_structure(tf.identity, batch)
    )
    assert first == second


@pytest.mark.parametrize("width", [1, 8, 9, 1000])
def test_a_checksum_depends_on_each_row_and_their_order(width):
    values = np.random.default_rng(1).normal(size=(6, width))
    others = [np.roll(values, 1, axis=0), values[::-1]]
    for row in range(6):
        changed = values.copy()
        changed[row] += 1
        others.append(changed)
    checksums = checksums_of(*map(tf.constant, [values, *others]))
    assert len(set(checksums)) == 1 + len(others)


@pytest.mark.parametrize(
    "batches",
    [
        (["one", "two"], ["one", "twp"]),
        (["a" * 40, "b"], ["a" * 39 + "c", "b"]),
        (["ab", "c"], ["a", "bc"]),
        ([1, 2, 3, 4], [1, 2, 3, 5]),
        ([[1, 2]], [[1], [2]]),
    ],
    ids=str,
)
def test_a_checksum_depends_on_values_and_shapes(batches):
    first, second = checksums_of(*map(tf.constant, batches))
    assert first != second


def test_a_checksum_depends_on_the_parts_of_a_composite_tensor():
    flat = tf.constant([1, 2, 3])
    batches = [
        tf.RaggedTensor.from_row_lengths(flat, lengths)
        for lengths in ([1, 2], [2, 1])
    ]
    first, second = (checksums_of(batch) for batch in batches)
    assert first != second


def test_nobody_asks():
    assert notes_of(tf.constant([1]), iteration=-1) == []


def test_iterations_at_once_keep_their_numbers():
    notes = Notes()
    batches = tf.data.Dataset.range(6).batch(2)

    def keep(number, batch):
        notes.note(number, batch)
        return batch

    dataset = notes.numbered(batches).map(keep)
    iterators = []
    for number in (3, 4):
        notes.begin(number)
        iterators.append(iter(dataset))
        next(iterators[-1])
    for _ in range(2):
        for iterator in iterators:
            next(iterator)
    found: dict[int, list[str]] = {}
    for number, note in notes.fetch():
        found.setdefault(number, []).append(note.partition(" ")[2])
    expected = ["0, 1", "2, 3", "4, 5"]
    assert {n: f[:3] for n, f in found.items()} == {3: expected, 4: expected}
