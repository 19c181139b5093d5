"""`fit` on a share takes the order that Keras alone takes from all data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras.callbacks import BroadcastGlobalVariablesCallback

pytestmark = pytest.mark.thorough(1, 4)


def pairs(num_rows: int) -> tf.data.Dataset:
    x = np.arange(float(num_rows), dtype="float32")[:, None]
    return tf.data.Dataset.from_tensor_slices((x, x))


class Seen(keras.Model):
    """Keeps the rows of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.rows: list[list[int]] = []

    def call(self, rows: Any) -> Any:
        return self.dense(rows)

    def train_step(self, data: Any) -> Any:
        self.rows.append(data[0].numpy().ravel().astype(int).tolist())
        return super().train_step(data)


def rows_in(data: tf.data.Dataset, optimizer: Any) -> list[Any]:
    model = Seen()
    model.compile(optimizer, "mse", run_eagerly=True)
    callbacks = [BroadcastGlobalVariablesCallback(0)]
    for _ in range(2):
        model.fit(data, verbose=0, callbacks=callbacks, epochs=2)
    return [list(step) for step in model.rows]


@pytest.mark.parametrize(
    "make",
    [
        lambda: pairs(24).shuffle(24, seed=1).batch(8),
        lambda: pairs(21).map(lambda x, y: (x, y)).shuffle(9, seed=1).batch(8),
        lambda: pairs(24).filter(lambda x, y: x[0] >= 0).shuffle(9, 1).batch(8),
        lambda: pairs(24).batch(8).shuffle(3, seed=1).prefetch(1),
    ],
    ids=["rows", "map", "unknown length", "batches"],
)
def test_rows_come_as_from_keras_alone(make: Any) -> None:
    own = rows_in(
        hvd.shard(make(), batched=True), hvd.DistributedOptimizer("sgd")
    )
    of_ranks = hvd.allgather_object(own)
    whole = [
        [row for part in step for row in part]
        for step in zip(*of_ranks, strict=True)
    ]
    assert whole == rows_in(make(), "sgd")


def test_keras_knows_the_steps_of_batches() -> None:
    def steps(num_rows: int, size: int) -> int:
        data = pairs(num_rows).shuffle(9, seed=1).batch(size)
        return int(hvd.shard(data, batched=True).cardinality())

    assert steps(80, 16) == 5
    assert steps(81, 16) == 6
    unknown = pairs(80).filter(lambda x, y: x[0] > 3).batch(16)
    share = hvd.shard(unknown, batched=True)
    assert int(share.cardinality()) == tf.data.UNKNOWN_CARDINALITY
