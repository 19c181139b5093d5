"""Training by global batches of any size; see `hvd.shard`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from selection import thorough_except

import hvd_keras as hvd
from hvd_keras.data._pass import OfEpoch

pytestmark = pytest.mark.thorough(4)

NUM_ROWS, SIZE = 29, 7
X = np.random.default_rng(1).normal(size=(NUM_ROWS, 3)).astype("float32")
Y = np.abs(X[:, :1])


def batches_of(sizes: list[int]) -> list[Any]:
    ends = np.cumsum(sizes)
    return [
        (X[e - n : e], Y[e - n : e]) for n, e in zip(sizes, ends, strict=True)
    ]


class Batches(keras.utils.PyDataset):
    """Batches of unequal numbers of rows, fewer than ranks among them."""

    sizes = (7, 5, 1, 8)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> Any:
        return batches_of(list(self.sizes))[index]


def dataset() -> Any:
    tf = pytest.importorskip("tensorflow")
    return tf.data.Dataset.from_tensor_slices((X, Y))


def kept_dataset() -> Any:
    """Batches that a function has changed: nobody knows their sizes."""
    return dataset().batch(SIZE).map(lambda x, y: (x[::-1], y[::-1])).repeat(2)


def with_work(x: Any, y: Any) -> Any:
    """Changes nothing, by an op that runs when the row is dealt."""
    tf = pytest.importorskip("tensorflow")
    return x + 0 * tf.cumsum(x), y


FULL = [7, 7, 7, 7, 1]
CASES: dict[str, tuple[Callable[[], Any], list[Any]]] = {
    "arrays": (
        lambda: hvd.shard((X, Y), global_batch_size=SIZE),
        batches_of(FULL),
    ),
    "arrays, dropped": (
        lambda: hvd.shard((X, Y), global_batch_size=SIZE, policy="drop"),
        batches_of(FULL[:-1]),
    ),
    "arrays, padded": (
        lambda: hvd.shard((X, Y), global_batch_size=SIZE, policy="pad"),
        batches_of(FULL),
    ),
    "fewer rows than ranks": (
        lambda: hvd.shard((X[:9], Y[:9]), global_batch_size=1),
        [(X[n : n + 1], Y[n : n + 1]) for n in range(9)],
    ),
    "PyDataset": (
        lambda: hvd.shard(Batches(), batched=True),
        batches_of(list(Batches.sizes)),
    ),
    "rows of a dataset": (
        lambda: hvd.shard(dataset(), global_batch_size=SIZE),
        batches_of(FULL),
    ),
    "rows that are changed late": (
        lambda: hvd.shard(dataset().map(with_work), global_batch_size=SIZE),
        batches_of(FULL),
    ),
    "batches that are made late": (
        lambda: hvd.shard(
            dataset().map(with_work).batch(4).map(lambda x, y: (x * 1, y)),
            batched=True,
            global_batch_size=SIZE,
        ),
        batches_of(FULL),
    ),
    "batches of a dataset": (
        lambda: hvd.shard(dataset().batch(SIZE), batched=True),
        batches_of(FULL),
    ),
    "batches cut anew": (
        lambda: hvd.shard(
            dataset().batch(4), batched=True, global_batch_size=SIZE
        ),
        batches_of(FULL),
    ),
    "batches of any size": (
        lambda: hvd.shard(kept_dataset(), batched=True),
        batches_of(FULL) * 2,
    ),
}


def model(optimizer: Any) -> Any:
    keras.utils.set_random_seed(1)
    dense = [keras.layers.Dense(2, activation="tanh"), keras.layers.Dense(1)]
    made = keras.Sequential([keras.Input((3,)), *dense])
    made.compile(optimizer, "mse")
    return made


@pytest.mark.parametrize(
    "case",
    thorough_except(
        CASES,
        "arrays",
        "fewer rows than ranks",
        "PyDataset",
        "rows that are changed late",
        "batches of a dataset",
    ),
)
def test_n_ranks_take_the_steps_of_one_process(case: str) -> None:
    make, batches = CASES[case]
    alone = model(keras.optimizers.Adam(0.1))
    for x, y in batches * 2:
        alone.train_on_batch(x, y)
    ours = model(hvd.DistributedOptimizer(keras.optimizers.Adam(0.1)))
    history = ours.fit(make(), epochs=2, verbose=0)
    assert int(ours.optimizer.iterations) == 2 * len(batches)
    for one, other in zip(alone.get_weights(), ours.get_weights(), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
    assert len(history.history["loss"]) == 2


@pytest.mark.parametrize("is_built", [False, True])
def test_an_order_goes_by_the_number_that_keras_has(is_built: bool) -> None:
    """Keras counts what it builds a model by as an epoch."""
    found = []

    class Counted(Batches):
        sizes = (6, 6, 6, 6)
        num_ended = 0

        def __getitem__(self, index: int) -> Any:
            found.append((self.num_ended, index))
            return super().__getitem__(index)

        def on_epoch_end(self) -> None:
            self.num_ended += 1

    made = model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    if not is_built:
        made = keras.Sequential([keras.layers.Dense(1)])
        made.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    share = hvd.shard(Counted(), batched=True, shuffle=OfEpoch(order_of_four))
    made.fit(share, epochs=3, verbose=0)
    by_epoch = [
        [index for number, index in found if number == epoch][-4:]
        for epoch in range(int(found[-1][0]) + 1)
    ]
    expected = [order_of_four(4, epoch).tolist() for epoch in range(4)]
    assert by_epoch[-3:] == expected[len(by_epoch) - 3 : len(by_epoch)]


def order_of_four(num: int, epoch: int) -> Any:
    assert num == 4
    return np.roll(np.arange(4), epoch)


@pytest.mark.parametrize("policy", ["split", "pad"])
@pytest.mark.parametrize("num_rows", [NUM_ROWS, NUM_ROWS - 1, NUM_ROWS - 4])
def test_copies_are_not_predicted(num_rows: int, policy: str) -> None:
    made = model("sgd")
    rows = X[:num_rows], Y[:num_rows]
    share = hvd.shard(rows, global_batch_size=SIZE, policy=policy)
    found = hvd.predict(made, share, verbose=0)
    one = made.predict(rows[0], verbose=0)
    np.testing.assert_allclose(found, one, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["batch_size", "global_batch_size"])
def test_a_size_of_batches_that_are_made_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"PyDataset, .* Received: 8 rows"):
        hvd.shard(Batches(), **{name: 8})


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"global_batch_size": 0}, "global_batch_size=0"),
        ({"global_batch_size": 4, "batch_size": 4}, "Only one of"),
    ],
)
def test_a_wrong_size_is_refused(arguments: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        hvd.shard((X, Y), **arguments)


@pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
@pytest.mark.parametrize("policy", ["pad", "drop", "join"])
def test_fewer_rows_than_ranks_in_each_step_need_the_policy_split(
    policy: str,
) -> None:
    few = {"global_batch_size": hvd.size() - 1, "policy": policy}
    with pytest.raises(ValueError, match=f"{hvd.size() - 1} rows for"):
        hvd.shard((X, Y), **few)


@pytest.mark.parametrize("policy", ["pad", "drop", "join"])
def test_batches_that_are_kept_are_split(policy: str) -> None:
    with pytest.raises(ValueError, match="`policy` must be 'split'"):
        hvd.shard(Batches(), batched=True, policy=policy)
