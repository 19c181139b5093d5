"""Shares of data in a loop, and fits over them, leave nothing behind."""

from __future__ import annotations

import collections
import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras import _core
from hvd_keras.data.position import handle_of

X = np.arange(64, dtype=np.float32).reshape(32, 2)
Y = X[:, :1].copy()
# What TensorFlow itself keeps, of which some come with the first calls alone.
FIRST_OBJECTS, FIRST_BYTES, BYTES_A_CALL = 150, 600_000, 1_000
NUM_FIRST = 9  # a few loops are known at a time


class Rows(keras.utils.PyDataset):
    """Batches, of which nobody keeps one."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        rows = slice(index * 8, index * 8 + 8)
        return X[rows], Y[rows]


def arrays() -> Any:
    return hvd.shard((X, Y), batch_size=4, shuffle=True)


def dataset() -> Any:
    return hvd.shard(tf.data.Dataset.from_tensor_slices((X, Y)), batch_size=4)


def of_unknown_length() -> Any:
    rows = tf.data.Dataset.from_tensor_slices((X, Y))
    return hvd.shard(rows.filter(lambda x, y: True), batch_size=4)


def py_dataset() -> Any:
    return hvd.shard(Rows())


def _read(data: Any) -> None:
    if isinstance(data, tf.data.Dataset):
        for _ in data:
            pass
    else:
        for index in range(data.num_batches):
            data[index]


def _fitting() -> Callable[[Any], None]:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1e-3))
    model.compile(optimizer, "mse")
    return lambda data: model.fit(data, verbose=0)


def _counted() -> tuple[collections.Counter[type], int]:
    gc.collect()
    gc.collect()
    kinds = collections.Counter(map(type, gc.get_objects()))
    return kinds, tracemalloc.get_traced_memory()[0]


_slow = pytest.mark.nightly


@pytest.mark.thorough(1, 4)
@pytest.mark.parametrize(
    "num_calls", [20, pytest.param(200, marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize(
    ("make", "fits", "of_tensorflow"),
    [
        # An iteration over a tf.data pipeline that Python makes leaves a list.
        (arrays, False, 0),
        pytest.param(arrays, True, 0, marks=_slow),
        pytest.param(dataset, False, 1, marks=_slow),
        pytest.param(dataset, True, 1, marks=pytest.mark.thorough),
        pytest.param(of_unknown_length, False, 1, marks=_slow),
        pytest.param(py_dataset, False, 0, marks=_slow),
        # So does a plain `fit`: see `tf.data.Dataset.from_generator`.
        pytest.param(py_dataset, True, 45, marks=pytest.mark.thorough),
    ],
)
def test_calls_leave_nothing_behind(
    make: Callable[[], Any], fits: bool, of_tensorflow: int, num_calls: int
) -> None:
    use = _fitting() if fits else _read
    for _ in range(NUM_FIRST):
        use(make())
    tracemalloc.start(1)
    kinds, num_bytes = _counted()
    for _ in range(num_calls):
        use(make())
    kinds_after, num_bytes_after = _counted()
    tracemalloc.stop()
    more = kinds_after - kinds
    ours = {
        kind.__name__: count
        for kind, count in more.items()
        if kind.__module__.startswith("hvd_keras.") and count >= num_calls // 4
    }
    assert not ours
    most = FIRST_OBJECTS + of_tensorflow * num_calls
    assert sum(more.values()) <= most, more.most_common(8)
    if of_tensorflow <= 1:
        most = FIRST_BYTES + BYTES_A_CALL * num_calls
        assert num_bytes_after - num_bytes <= most


def test_notes_that_nobody_fetched_go_with_the_data() -> None:
    data = dataset()
    handle = handle_of(data)
    assert handle is not None
    notes = handle.taken.fetch.__self__  # type: ignore[attr-defined]
    pipeline = notes._pipeline
    handle.taken.watch()
    _read(data)
    if hvd.size() > 1:
        found = _core.take_batch_notes(pipeline)
        assert found  # there are some
    _read(data)
    del data, handle, notes
    gc.collect()
    assert not _core.take_batch_notes(pipeline)


def test_a_share_lives_as_long_as_what_is_made_of_it() -> None:
    def mapped() -> Any:
        return arrays().map(lambda x, y, *w: x).prefetch(1)

    def nested() -> Any:
        share = mapped()
        return tf.data.Dataset.range(2).flat_map(lambda _: share)

    def counting() -> Any:
        share = mapped()

        @tf.function
        def count() -> tf.Tensor:
            return share.reduce(0, lambda number, _: number + 1)

        count()  # traced while the share is there
        return count

    data, iterator = mapped(), iter(mapped())
    twice, count = nested(), counting()
    gc.collect()
    num_steps = len(list(data))
    assert num_steps == len(list(iterator)) == int(count()) > 0
    assert len(list(twice)) == 2 * num_steps
