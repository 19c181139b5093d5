"""Each rank draws its own random numbers in `fit`, and only there."""

from __future__ import annotations

import itertools
from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd

pytestmark = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")


def of_ranks(values: Any) -> list[Any]:
    return hvd.allgather_object(np.round(values, 6).tolist())


def are_equal(values: Any) -> bool:
    return len(set(map(str, of_ranks(values)))) == 1


def are_apart(values: Any) -> bool:
    numbers = list(itertools.chain(*of_ranks(values)))
    return len(numbers) > 0 and len(set(numbers)) == len(numbers)


def draw() -> list[float]:
    drawn = [float(keras.random.normal(()))]
    if keras.backend.backend() == "torch":
        import torch

        drawn += [float(torch.randn(())), float(torch.randn(()))]
    return drawn


class Noise(keras.utils.PyDataset):
    """Batches that are shuffled and changed at random."""

    def __init__(self) -> None:
        super().__init__()
        self.order = np.arange(3 * hvd.size())
        self.orders: list[Any] = []
        self.drawn: list[float] = []

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Any:
        self.drawn += draw()
        rows = np.full((2, 3), self.order[index], "float32")
        return rows, rows[:, :1]

    def on_epoch_end(self) -> None:
        order = keras.random.shuffle(self.order)
        self.order = np.asarray(keras.ops.convert_to_numpy(order))
        self.orders += self.order.tolist()


class Draw(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.drawn: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.drawn += draw()


def test_fit_draws_apart_but_for_orders() -> None:
    keras.utils.set_random_seed(4)
    assert are_equal(draw())
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer("sgd"), "mse")
    data, callback = Noise(), Draw()
    for _ in range(2):
        begin = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
        model.fit(
            hvd.shard(data),
            epochs=2,
            verbose=0,
            callbacks=[callback, begin],
        )
        assert are_equal(draw())
    assert len(set(map(str, np.reshape(data.orders, (-1, len(data)))))) > 2
    assert are_equal(data.orders)
    assert are_apart(callback.drawn)
    # Before a `fit` trains, Keras looks at the data.
    assert are_apart(data.drawn[-6 * len(draw()) :])


@pytest.mark.skipif("keras.backend.backend() != 'torch'", reason="of torch")
def test_steps_draw_apart() -> None:
    keras.utils.set_random_seed(4)
    drawn: list[float] = []

    class Model(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            drawn.extend(draw())
            return super().train_step(data)

    model = Model([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer("sgd"), "mse", jit_compile=False)
    x = np.zeros((24, 3), "float32")
    model.fit(
        hvd.shard((x, x[:, :1]), batch_size=2),
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    assert are_apart(drawn)
    assert are_equal(draw())


def test_the_same_seed_draws_the_same_again() -> None:
    def run() -> Any:
        keras.utils.set_random_seed(4)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile(hvd.DistributedOptimizer("sgd"), "mse")
        callback = Draw()
        for _ in range(2):
            begin = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
            model.fit(
                hvd.shard((x, x[:, :1]), batch_size=2),
                verbose=0,
                callbacks=[callback, begin],
            )
        return [*callback.drawn, *draw(), *model.get_weights()[0].ravel()]

    x = np.linspace(0, 1, 24, dtype="float32").reshape(8, 3)
    first = run()
    keras.random.normal(())  # which shifts what follows, until it is set anew
    np.testing.assert_array_equal(run(), first)
