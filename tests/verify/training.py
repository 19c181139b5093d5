"""What programs for `hvdrun --verify` train, and how."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import hvd_keras as hvd
from hvd_keras import basics

BACKEND = keras.backend.backend()
ROWS = 45  # of 16: two full steps, and one with 13


def on_ranks() -> bool:
    """Whether this is one of several ranks, and not the one process."""
    return basics.size() > 1


def data_of(num_rows: int = ROWS) -> tuple[Any, Any]:
    random = np.random.default_rng(5)
    x = random.normal(size=(num_rows, 6)).astype("float32")
    y = random.normal(size=(num_rows, 3)).astype("float32")
    return x, y


def layers_with(*more: Any) -> list[Any]:
    return [
        keras.layers.Input((6,)),
        keras.layers.Dense(8, activation="tanh"),
        *more,
        keras.layers.Dense(3),
    ]


def sgd() -> Any:
    return hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))


def moved() -> Any:
    """Returns what gives each rank random numbers of its own in `fit`."""
    return hvd.callbacks.BroadcastGlobalVariablesCallback(0)


def fit(model: Any, data: Any = None, callbacks: Any = (), **kw: Any) -> Any:
    kw.setdefault("epochs", 5)
    if data is None:
        data = hvd.shard(data_of(), batch_size=8)
    average = hvd.callbacks.MetricAverageCallback()
    return model.fit(data, callbacks=[average, *callbacks], verbose=0, **kw)


def compiled(model: Any = None, loss: Any = "mse", **kw: Any) -> Any:
    if model is None:
        model = keras.Sequential(layers_with())
    kw.setdefault("optimizer", sgd())
    model.compile(loss=loss, **kw)
    return model
