"""A rest of an epoch is dealt out among other ranks, each row once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras.data.position import Position, handle_of

pytestmark = pytest.mark.thorough(4)

SIZE = 2  # rows of a rank's batch
NUM_ROWS = 61


@pytest.fixture(autouse=True)
def _equal_seeds() -> None:
    # `shuffle(seed=...)` also depends on the seed that another test may have
    # set, to another value on each rank.
    tf.random.set_seed(0)


def as_arrays(**options: Any) -> Any:
    rows = np.arange(NUM_ROWS)
    options = {"batch_size": SIZE, "shuffle": True, "seed": 5, **options}
    return hvd.shard((rows, rows * 10), **options)


def as_dataset(**options: Any) -> Any:
    rows = np.arange(NUM_ROWS)
    dataset = tf.data.Dataset.from_tensor_slices((rows, rows * 10))
    return hvd.shard(dataset, batch_size=SIZE, **options)


def as_unknown(**options: Any) -> Any:
    rows = np.arange(NUM_ROWS)
    dataset = tf.data.Dataset.from_tensor_slices((rows, rows * 10))
    dataset = dataset.filter(lambda x, y: True).batch(3)
    return hvd.shard(dataset, batch_size=SIZE, batched=True, **options)


def as_function(**options: Any) -> Any:
    rows = np.arange(NUM_ROWS)

    def make_dataset(epoch: int) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices((rows, rows * 10))
        return dataset.shuffle(NUM_ROWS, seed=epoch)

    return hvd.shard(make_dataset, batch_size=SIZE, **options)


def rows_of(share: Any, num_steps: int | None = None) -> list[int]:
    """Returns the rows of this rank's steps that do not only fill a batch."""
    found = []
    for x, _, *weights in itertools.islice(share, num_steps):
        is_row = weights[0] > 0 if weights else np.ones(len(x), bool)
        found += np.asarray(x)[is_row].tolist()
    return found


def of_all(own: list[int]) -> list[int]:
    return sorted(row for rows in hvd.allgather_object(own) for row in rows)


@pytest.mark.parametrize("elastic", [False, True])
@pytest.mark.parametrize(
    "source", [as_arrays, as_dataset, as_unknown, as_function]
)
def test_other_ranks_take_the_rest_of_an_epoch(
    source: Callable[..., Any], elastic: bool, sets: dict[str, hvd.ProcessSet]
) -> None:
    whole = source(elastic=elastic)
    few = source(elastic=elastic, process_set=sets["parity"])
    for first, then in ((whole, few), (few, whole)):
        is_first = first is whole or hvd.rank() % 2 == 0
        is_then = then is whole or hvd.rank() % 2 == 0
        handle_of(first).seek(Position(2, 0))
        done = rows_of(first, 3) if is_first else []
        position = handle_of(first).position_after(3)
        position = hvd.broadcast_object(position.__dict__, 0)
        handle = handle_of(then.map(lambda *batch: batch).prefetch(1))
        handle.seek(Position(**position))
        assert position["epoch"] == 2
        left = rows_of(then, handle.num_steps()) if is_then else []
        assert of_all(done + left) == list(range(NUM_ROWS))
        # The next iteration is a whole epoch.
        next_ones = rows_of(then) if is_then else []
        assert of_all(next_ones) == list(range(NUM_ROWS))
        if is_then:
            assert handle.position_at_end() == Position(4, 0)


def test_a_position_has_the_rows_of_all_ranks() -> None:
    share = as_arrays()
    handle = handle_of(share)
    for _ in share.take(1):
        pass
    full = SIZE * hvd.size()
    assert handle.position_after(0) == Position(0, 0)
    assert handle.position_after(2) == Position(0, 2 * full)
    assert handle.position_after(10_000) == Position(1, 0)
    handle.seek(Position(7, full))
    assert handle.position_after(1) == Position(7, 2 * full)


def test_the_order_follows_from_seed_and_epoch() -> None:
    share, other = as_arrays(), as_arrays()
    for epoch in range(2):
        found = rows_of(share)
        handle_of(other).seek(Position(epoch, 0))
        assert rows_of(other) == found


def test_a_fit_that_looks_at_a_batch_keeps_the_place() -> None:
    import keras

    rows = np.arange(24 * hvd.size(), dtype=np.float32)
    share = hvd.shard((rows, rows), batch_size=4)
    handle_of(share).seek(Position(3, 8 * hvd.size()))
    model = keras.Sequential([keras.layers.Dense(1)])  # not built
    model.compile("sgd", "mse")
    seen: list[int] = []
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(batch)
    )
    data = share.map(lambda x, y: (x[:, None], y))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("warnings.warn", _raise)  # of data that ran out
        model.fit(data, epochs=2, shuffle=False, verbose=0, callbacks=[count])
    assert seen == [*range(4), *range(6)]
    assert handle_of(data).position_at_end() == Position(5, 0)


def _raise(message: Any, *args: Any, **options: Any) -> None:
    raise AssertionError(message)


def test_what_is_left_must_fit_into_fixed_shapes() -> None:
    rows = np.arange(8 * hvd.size())
    share = hvd.shard((rows, rows), batch_size=4)
    with pytest.raises(ValueError, match="elastic=True"):
        handle_of(share).seek(Position(0, 1))
    handle_of(share).seek(Position(0, 4 * hvd.size()))
    assert len(rows_of(share)) == 4
    tf.debugging.assert_shapes([(next(iter(share))[0], (4,))])
    open_form = hvd.shard((rows, rows), batch_size=4, elastic=True)
    handle_of(open_form).seek(Position(0, 1))
    assert of_all(rows_of(open_form)) == rows[1:].tolist()


def test_rows_in_another_order_are_an_error() -> None:
    rows = tf.data.Dataset.range(24 * hvd.size())
    share = hvd.shard(rows.shuffle(100, seed=1), batch_size=4)
    for _ in share.take(1):
        pass
    handle_of(share).seek(handle_of(share).position_after(2))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="reshuffle_each_iteration=False"
    ):
        next(iter(share))
    kept = rows.shuffle(100, seed=1, reshuffle_each_iteration=False)
    share = hvd.shard(kept, batch_size=4)
    expected = [batch.numpy().tolist() for batch in share]
    handle_of(share).seek(handle_of(share).position_after(2))
    found = [batch.numpy().tolist() for batch in share.take(4)]
    assert found == expected[2:]


@pytest.mark.parametrize("kind", ["texts", "ragged", "sparse"])
@pytest.mark.parametrize("batched", [False, True])
def test_texts_and_ragged_rows_go_on_too(kind: str, batched: bool) -> None:
    count = 12 * hvd.size()
    texts = tf.strings.as_string(tf.range(count))
    rows = {
        "texts": texts,
        "ragged": tf.strings.bytes_split(texts),
        "sparse": tf.sparse.from_dense(np.eye(count)),
    }[kind]
    dataset = tf.data.Dataset.from_tensor_slices(rows)
    if batched:
        dataset = dataset.batch(5)
    share = hvd.shard(dataset, batch_size=4, batched=batched)
    whole = list(share)
    handle = handle_of(share)
    handle.seek(Position(0, 0))
    next(iter(share))
    handle.seek(handle.position_after(1))
    rest = list(share.take(2))
    assert len(rest) == 2
    for found, expected in zip(rest, whole[1:], strict=True):
        for ours, wanted in zip(
            tf.nest.flatten(found, expand_composites=True),
            tf.nest.flatten(expected, expand_composites=True),
            strict=True,
        ):
            np.testing.assert_array_equal(ours, wanted)


def test_a_cached_share_has_no_position() -> None:
    share = as_arrays()
    assert handle_of(share.cache()) is None
    assert handle_of(share.prefetch(1)) is handle_of(share)
    assert handle_of(tf.data.Dataset.range(2)) is None
