"""Layers with states, and how they are trained."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import hvd_keras as hvd

ops = keras.ops
ROWS = 96
EPOCHS = 2


def rows() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    x = generator.normal(1.0, 2.0, size=(ROWS, 4)).astype("float32")
    # Sorted, so that the ranks' rows have means of their own.
    return x[np.argsort(x[:, 0])], np.ones((ROWS, 1), "float32")


class Stateful(keras.layers.Layer):
    """Counts rows in float and int, adds them up and keeps a queue."""

    def __init__(self, **aggregation: str) -> None:
        super().__init__()
        self.said = aggregation

    def build(self, shape: Any) -> None:
        def add(name: str, shape: Any = (), dtype: str = "float32") -> Any:
            return self.add_weight(
                shape=shape,
                initializer="zeros",
                dtype=dtype,
                trainable=False,
                name=name,
                aggregation=self.said.get(name, "none"),
            )

        self.sums = add("sums", (shape[-1],))
        self.seen = add("seen", (), "int32")
        self.centre = add("centre", (shape[-1],))
        self.queue = add("queue", (2, shape[-1]))

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.sums.assign(self.sums + ops.sum(x, axis=0))
            self.seen.assign(self.seen + ops.cast(ops.shape(x)[0], "int32"))
            self.centre.assign(0.9 * self.centre + 0.1 * ops.mean(x, axis=0))
            self.queue.assign(x[:2])
        return x


class Running(keras.layers.Layer):
    """Keeps mean, squares and count as Chan et al., as BayesFlow does."""

    def build(self, shape: Any) -> None:
        options: dict[str, Any] = {"initializer": "zeros", "trainable": False}
        self.mean = self.add_weight((shape[-1],), name="mean", **options)
        self.m2 = self.add_weight((shape[-1],), name="m2", **options)
        self.count = self.add_weight((), name="count", **options)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            count = ops.cast(ops.shape(x)[0], "float32")
            mean = ops.mean(x, axis=0)
            m2 = ops.sum((x - mean) ** 2, axis=0)
            total, delta = self.count + count, mean - self.mean
            self.m2.assign(
                self.m2 + m2 + delta**2 * (self.count * count / total)
            )
            self.mean.assign(self.mean + delta * (count / total))
            self.count.assign(total)
        return x


def merged(before: list[Any], ranks: list[list[Any]]) -> list[Any]:
    """Adds up counts, sums and squares; returns mean, squares and count."""

    def sums(state: list[Any]) -> np.ndarray:
        mean, m2, count = (np.asarray(value, "f8") for value in state)
        return np.stack([mean * 0 + count, count * mean, m2 + count * mean**2])

    total = sums(before) + sum(sums(each) - sums(before) for each in ranks)
    mean = total[1] / total[0]
    return [mean, total[2] - total[0] * mean**2, total[0][0]]


def trained(layer: Any, *callbacks: Any, alone: bool = False) -> Any:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input((4,)), layer, keras.layers.Dense(1)], name="trained"
    )
    optimizer = keras.optimizers.SGD(0.01)
    if not alone:
        optimizer = hvd.DistributedOptimizer(optimizer)
        first = hvd.callbacks.BroadcastGlobalVariablesCallback()
        callbacks = (first, *callbacks)
    model.compile(optimizer, "mse")
    options: dict[str, Any] = {"epochs": EPOCHS, "verbose": 0}
    if alone:
        x, y = rows()
        model.fit(x, y, 24, shuffle=False, **options)
    else:
        data = hvd.shard(rows(), batch_size=24 // hvd.size())
        model.fit(data, shuffle=False, callbacks=list(callbacks), **options)
    return model
