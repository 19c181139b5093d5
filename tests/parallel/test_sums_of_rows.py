"""Losses that add up the rows of a rank are told, others are not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd

pytestmark = pytest.mark.thorough(4)

ops = keras.ops
SIZE = 8  # rows of a rank, features and units


class OfModel(keras.Sequential):
    """Computes its loss by `of(model, squares)`."""

    of: Callable[[Any, Any], Any]

    def compute_loss(
        self, x: Any, y: Any, y_pred: Any, *_: Any, **__: Any
    ) -> Any:
        return type(self).of(self, ops.square(y - y_pred))


class Adds(keras.layers.Layer):
    """Adds the loss `of(squares)`."""

    def __init__(self, of: Callable[[Any], Any]) -> None:
        super().__init__()
        self.of = of

    def call(self, x: Any) -> Any:
        self.add_loss(0.01 * self.of(ops.square(x)))
        return x


def _sum(squares: Any) -> Any:
    return ops.sum(squares)


def _sum_of_means(squares: Any) -> Any:
    return 0.5 * ops.sum(ops.mean(squares, axis=-1)) + 1.0


def _sum_a_row(squares: Any) -> Any:
    return ops.sum(squares, axis=-1)


def _mean(squares: Any) -> Any:
    return ops.mean(squares)


def _sum_over_shape(squares: Any) -> Any:
    total = ops.sum(squares)
    return total / ops.cast(ops.shape(squares)[0], "float32")


def _with_penalty(model: Any, squares: Any) -> Any:
    weights = map(ops.square, model.trainable_variables)
    return ops.mean(squares) + sum(map(ops.sum, weights))


def fit(loss: Any, kind: Any = keras.Sequential, *layers: Any) -> None:
    keras.utils.set_random_seed(1)
    first, last = (keras.layers.Dense(SIZE, "tanh") for _ in range(2))
    model = kind([keras.Input((SIZE,)), first, *layers, last])
    model.compile(hvd.DistributedOptimizer("adam"), loss)
    rows = np.random.default_rng(2).normal(size=(2 * SIZE * hvd.size(), SIZE))
    x = rows.astype("f")
    model.fit(hvd.shard((x, x), batch_size=SIZE), verbose=0)


def squares_of(of: Callable[[Any], Any]) -> Any:
    return lambda y, y_pred: of(ops.square(y - y_pred))


def model_of(of: Callable[[Any, Any], Any]) -> Any:
    return type("Own", (OfModel,), {"of": of})


@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="its sums are not looked for"
)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([squares_of(_sum)], "the step of Sequential"),
        ([squares_of(_sum_of_means)], "the step of Sequential"),
        (["mse", keras.Sequential, Adds(_sum)], "the step of Sequential"),
        ([None, model_of(lambda _, each: _sum(each))], "`compute_loss` of Own"),
        (
            [None, model_of(lambda *both: _sum_of_means(both[1]) - 0.1)],
            "`compute_loss` of Own",
        ),
    ],
)
def test_a_sum_over_rows_is_told(
    arguments: Any, words: str, caplog: Any
) -> None:
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    fit(*arguments)
    told = [r.message for r in caplog.records if "adds up the" in r.message]
    assert len(told) == (hvd.rank() == 0 and hvd.size() > 1)
    assert all(words in each for each in told)


@pytest.mark.parametrize(
    "arguments",
    [
        [squares_of(_mean)],
        [squares_of(_sum_a_row)],
        [squares_of(_sum_over_shape)],
        [keras.losses.MeanSquaredError(reduction="sum")],
        ["mse", keras.Sequential, Adds(_sum_a_row)],
        [None, model_of(_with_penalty)],
    ],
)
def test_other_losses_are_not(arguments: Any, caplog: Any) -> None:
    """Rows, features and units are equally many: shapes look alike."""
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    fit(*arguments)
    assert "adds up the" not in caplog.text
