"""Passes over what `shuffle` and `repeat` make, some of them broken off."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras.data import position

NUM_ROWS = 24
Dataset = tf.data.Dataset


def rows(is_read_late: bool = False) -> Any:
    made = Dataset.range(NUM_ROWS)
    if is_read_late:
        made = made.map(lambda row: tf.math.cumsum(row[None])[0])
    return made


def plus_one(row: Any) -> Any:
    return row + 1


def by_python(row: Any) -> Any:
    (made,) = tf.numpy_function(lambda row: [row], [row], [tf.int64])
    return tf.ensure_shape(made, [])


def repeated(stages: str, is_read_late: bool) -> Any:
    """Returns rows that go through stages: numbers are counts of `repeat`."""
    made = rows(is_read_late).shuffle(9, seed=1)
    for stage in stages.split():
        if stage == "map":
            made = made.map(plus_one)
        elif stage == "python":
            made = made.map(by_python)
        elif stage == "take":
            made = made.take(42)
        elif stage == "shuffle":
            made = made.shuffle(7, seed=2)
        else:
            made = made.repeat(int(stage))
    return made


@pytest.mark.parametrize("is_read_late", [False, True])
@pytest.mark.parametrize(
    "stages",
    [
        *("1", "map 1", "2", "map 2", "2 take", "map 2 take", "-1 take"),
        *("python 2", "2 shuffle", "shuffle 2", "-1 shuffle take"),
    ],
)
def test_passes_are_those_of_tf_data_alone(
    stages: str, is_read_late: bool
) -> None:
    """It makes one stage of `shuffle` and `repeat`, where it may."""

    def make() -> Any:
        return repeated(stages, is_read_late).batch(4 * hvd.size())

    alone, share = make(), hvd.shard(make(), batched=True)
    for _ in range(3):
        found = hvd.allgather_object([batch.numpy() for batch in share])
        for step, batch in enumerate(alone):
            parts = np.concatenate([own[step] for own in found])
            np.testing.assert_array_equal(parts[: len(batch)], batch)


def of_generator() -> Any:
    wide = Dataset.from_generator(
        lambda: (np.full(100, row) for row in range(NUM_ROWS)),
        output_signature=tf.TensorSpec([100], tf.int64),
    )
    shuffled = wide.shuffle(NUM_ROWS, seed=1).repeat()
    return shuffled.map(lambda row: row[0])


def of_zipped() -> Any:
    shuffled = rows().shuffle(NUM_ROWS, seed=1).repeat()
    numbered = Dataset.zip(shuffled, Dataset.range(5).repeat())
    return numbered.map(lambda row, _: row)


def of_endless(change: Callable[[Any], Any], is_read_late: bool) -> Any:
    return change(rows(is_read_late).shuffle(NUM_ROWS, seed=1).repeat())


@pytest.mark.parametrize(
    "make",
    [
        lambda: of_endless(lambda data: data, True),
        lambda: of_endless(lambda data: data, False),
        lambda: of_endless(lambda data: data.map(by_python), False),
        lambda: of_endless(lambda data: data.repeat(2), True),
        lambda: of_endless(lambda data: Dataset.zip((data,)), False),
        of_generator,
        of_zipped,
    ],
    ids=[
        *("read late", "light", "python", "twice", "single"),
        *("generator", "zip"),
    ],
)
def test_ranks_agree_after_a_pass_that_was_broken_off(
    make: Callable[[], Any],
) -> None:
    """However far each of them has run ahead."""
    data = make().batch(NUM_ROWS // 2).prefetch(9)
    share = hvd.shard(data, batched=True)
    orders = []
    for turn in range(4):
        own = []
        for batch in itertools.islice(share, 4):
            time.sleep(0.02 * ((hvd.rank() + turn) % 2))
            own.append(tf.nest.flatten(batch)[0].numpy())
        steps = [
            np.concatenate(parts)
            for parts in zip(*hvd.allgather_object(own), strict=True)
        ]
        found = np.concatenate(steps).tolist()
        for begin in range(0, len(found), NUM_ROWS):
            assert sorted(found[begin : begin + NUM_ROWS]) == [*range(NUM_ROWS)]
        orders.append(found)
    assert len({tuple(order) for order in orders}) == len(orders)


def test_what_does_not_shuffle_is_made_once() -> None:
    calls = []

    def note(row: Any) -> Any:
        calls.append(row)
        return [row]

    def noted(row: Any) -> Any:
        (made,) = tf.numpy_function(note, [row], [tf.int64])
        return tf.ensure_shape(made, [])

    data = rows().map(noted).cache().shuffle(NUM_ROWS, seed=1).repeat()
    share = hvd.shard(data, batch_size=NUM_ROWS)
    for _ in range(3):
        next(iter(share))
    assert len(calls) == NUM_ROWS


def test_an_order_that_a_cache_keeps_stays() -> None:
    data = rows().shuffle(NUM_ROWS, seed=1).cache().repeat()
    share = hvd.shard(data, global_batch_size=NUM_ROWS)
    orders = [next(iter(share)).numpy().tolist() for _ in range(3)]
    assert orders[0] == orders[1] == orders[2]


def test_going_on_makes_no_more_rows_than_before() -> None:
    made = []

    def wide() -> Any:
        for row in range(10**6):
            made.append(row)
            yield np.full(100, row)

    data = Dataset.from_generator(
        wide, output_signature=tf.TensorSpec([100], tf.int64)
    )
    share = hvd.shard(
        data.shuffle(8, seed=1).repeat(), batch_size=4, elastic=True
    )
    handle = position.handle_of(share)
    assert handle is not None
    handle.seek(position.Position(0, 8))
    next(iter(share))
    assert len(made) < 200


def test_shares_of_one_shuffle_draw_orders_in_turn() -> None:
    def found(share: Callable[[Any], Any]) -> list[list[list[int]]]:
        tf.random.set_seed(1)
        made = Dataset.range(NUM_ROWS).shuffle(NUM_ROWS)
        both = made.skip(8).batch(4), made.take(8).batch(4)
        parts = [share(each) for each in both]
        passes = []
        for _ in range(3):
            for part in parts:
                own = [batch.numpy().tolist() for batch in part]
                iter(part)  # as Keras does after an epoch
                of_all = hvd.allgather_object(own)
                steps = zip(*of_all, strict=True)
                passes.append([list(itertools.chain(*each)) for each in steps])
        return passes

    ours = found(lambda data: hvd.shard(data, batched=True, policy="split"))
    alone = found(lambda data: data)
    assert ours == [[step[:4] for step in one] for one in alone]
