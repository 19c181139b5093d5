"""Hyperparameters that differ by rank are refused; other things may differ."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras.exceptions import MismatchError

pytestmark = pytest.mark.thorough(4)

RANK = hvd.rank()
ops, optimizers, layers = keras.ops, keras.optimizers, keras.layers
Decay = optimizers.schedules.ExponentialDecay


class Square(layers.Layer):
    """A layer of the user's, with a regularizer."""

    def __init__(self, kernel_regularizer: Any) -> None:
        super().__init__()
        self.kernel_regularizer = kernel_regularizer

    def get_config(self) -> dict[str, Any]:
        own = {"kernel_regularizer": self.kernel_regularizer, "rank": RANK}
        return {**super().get_config(), **own}

    def call(self, x: Any) -> Any:
        return x


def model(*more: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    dense = [layers.Dense(2, activation="tanh"), layers.Dense(1)]
    return keras.Sequential([keras.Input((3,)), *more, *dense])


def fit(
    optimizer: Any = None,
    *more: Any,
    loss: Any = "mse",
    fitted: Any = None,
    **compiled: Any,
) -> Callable[[], None]:
    made = model(*more)
    optimizer = optimizer or optimizers.SGD(0.1)
    made.compile(hvd.DistributedOptimizer(optimizer), loss, **compiled)
    rows = np.random.default_rng(2).normal(size=(8, 3)).astype("float32")
    targets = np.abs(rows[:, :1])

    def run() -> None:
        share = hvd.shard((rows, targets), batch_size=4 // hvd.size())
        made.fit(share, **{"verbose": 0, **(fitted or {})})

    return run


REFUSED = {
    "momentum": lambda: fit(optimizers.SGD(0.1, momentum=0.5 + RANK / 10)),
    "nesterov": lambda: fit(
        optimizers.SGD(0.1, momentum=0.5, nesterov=bool(RANK))
    ),
    "beta_1": lambda: fit(optimizers.Adam(0.1, beta_1=0.8 + RANK / 10)),
    "beta_2": lambda: fit(optimizers.Adam(0.1, beta_2=0.8 + RANK / 10)),
    "epsilon": lambda: fit(optimizers.Adam(0.1, epsilon=1e-7 * (1 + RANK))),
    "amsgrad": lambda: fit(optimizers.Adam(0.1, amsgrad=bool(RANK))),
    "rho": lambda: fit(optimizers.RMSprop(0.1, rho=0.8 + RANK / 10)),
    "weight_decay": lambda: fit(
        optimizers.AdamW(0.1, weight_decay=0.1 * (1 + RANK))
    ),
    "clipnorm": lambda: fit(optimizers.SGD(0.1, clipnorm=1.0 + RANK)),
    "clipvalue": lambda: fit(optimizers.SGD(0.1, clipvalue=1.0 + RANK)),
    "global_clipnorm": lambda: fit(
        optimizers.SGD(0.1, global_clipnorm=1.0 + RANK)
    ),
    "ema_momentum": lambda: fit(
        optimizers.SGD(0.1, use_ema=True, ema_momentum=0.5 + RANK / 10)
    ),
    "decay_rate": lambda: fit(
        optimizers.SGD(Decay(0.1, 10, decay_rate=0.5 + RANK / 10))
    ),
    "kernel_constraint": lambda: fit(
        None,
        layers.Dense(3, kernel_constraint=keras.constraints.MaxNorm(1 + RANK)),
    ),
    "kernel_regularizer": lambda: fit(
        None, layers.Dense(3, kernel_regularizer=keras.regularizers.L2(RANK))
    ),
    "rate": lambda: fit(None, layers.Dropout(0.5 + RANK / 10)),
    "activation": lambda: fit(
        None, layers.Dense(3, activation=["tanh", "relu"][RANK % 2])
    ),
    "loss": lambda: fit(loss=["mse", "mae"][RANK % 2]),
    "delta": lambda: fit(loss=keras.losses.Huber(1.0 + RANK)),
    "loss_weights": lambda: fit(loss_weights=[1.0 + RANK]),
    "class_weight": lambda: fit(fitted={"class_weight": {0: 1.0, 1: 1 + RANK}}),
    "regularizer": lambda: fit(None, Square(keras.regularizers.L1(0.1 + RANK))),
}

needs_peers = pytest.mark.skipif(hvd.size() == 1, reason="needs 2 ranks")


@needs_peers
@pytest.mark.parametrize("name", REFUSED)
def test_settings_that_differ_are_refused_each_time(name: str) -> None:
    run = REFUSED[name]()
    for _ in range(3):
        with pytest.raises(MismatchError, match="the same settings") as caught:
            run()
        text = str(caught.value)
        assert name in text
        for rank in range(min(2, hvd.size())):
            assert f"on rank {rank}" in text or f"on ranks {rank}" in text


def names_apart() -> Callable[[], None]:
    for _ in range(RANK):
        layers.Dropout(0.1)
    return fit(None, layers.Dropout(0.1))


ACCEPTED = {
    "nothing": lambda: fit(optimizers.Adam(Decay(0.1, 10, 0.9), clipnorm=1.0)),
    "names": names_apart,
    "seeds": lambda: fit(None, layers.Dropout(0.1, seed=RANK)),
    "initializers": lambda: _equal_weights(
        layers.Dense(
            3, kernel_initializer=keras.initializers.GlorotUniform(RANK)
        )
    ),
    "verbose": lambda: fit(fitted={"verbose": 2 * (RANK == 0)}),
    "callbacks": lambda: fit(
        fitted={"callbacks": [keras.callbacks.Callback()][: 1 - RANK]}
    ),
    "arguments of layers of the user's": lambda: fit(None, Square(None)),
    "a layer of one's own": lambda: fit(None, own(layers.Dropout(RANK / 10))),
    "functions": lambda: fit(loss=lambda y, p: ops.square(y - p)),
    "rows of the first batch": lambda: fit_unequal_rows(),
}


def fit_unequal_rows() -> Callable[[], None]:
    """Trains a model that Keras builds for the first batch."""
    keras.utils.set_random_seed(1)
    made = keras.Sequential([layers.Dense(2), layers.Dense(1)])
    made.compile(hvd.DistributedOptimizer(optimizers.SGD(0.1)), "mse")
    rows = np.ones((2 * hvd.size() + 1, 3), "float32")
    share = hvd.shard((rows, rows[:, :1]), batch_size=9)
    return lambda: made.fit(share, verbose=0)


def own(layer: Any) -> Any:
    hvd.set_aggregation(layer, "own")
    return layer


def _equal_weights(layer: Any) -> Callable[[], None]:
    begin = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    return fit(None, layer, fitted={"callbacks": [begin]})


@needs_peers
@pytest.mark.parametrize("kind", ACCEPTED)
def test_what_may_differ_is_accepted(kind: str) -> None:
    for run in itertools.repeat(ACCEPTED[kind](), 2):
        run()
