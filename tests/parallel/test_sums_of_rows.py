"""Sums over a rank's rows, and changed gradients, are told; others are not."""

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
BACKEND = keras.backend.backend()
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


def _of_masked(y: Any, y_pred: Any) -> Any:
    mask = ops.cast(y > 0, "float32")
    return ops.sum(ops.square(y - y_pred) * mask) / ops.sum(mask)


def _of_overlap(y: Any, y_pred: Any) -> Any:
    areas = ops.sum(ops.square(y)) + ops.sum(ops.square(y_pred))
    return 1 - (2 * ops.sum(y * y_pred) + 1.0) / (areas + 1.0)


def _of_masked_means(y: Any, y_pred: Any) -> Any:
    mask = ops.cast(y > 0, "float32")
    mean = ops.mean(ops.abs(y - y_pred) * mask)
    return ops.divide_no_nan(mean, ops.mean(mask))


def _of_masked_rows(y: Any, y_pred: Any) -> Any:
    mask = ops.cast(y > 0, "float32")
    squares = ops.sum(ops.square(y - y_pred) * mask, axis=-1)
    return ops.mean(squares / (ops.sum(mask, axis=-1) + 1.0))


def _of_all_masked(y: Any, y_pred: Any) -> Any:
    return hvd.global_mean(ops.square(y - y_pred), mask=y > 0)


@pytest.mark.parametrize(
    ("of", "is_told"),
    [
        (_of_masked, True),
        (_of_overlap, True),
        (_of_masked_means, BACKEND == "tensorflow"),
        (_of_masked_rows, False),
        (_of_all_masked, False),
        (squares_of(lambda squares: ops.mean(squares) / 2.0), False),
        (squares_of(lambda squares: ops.sum(squares) / SIZE**2), False),
    ],
)
def test_a_ratio_over_rows_is_told(of: Any, is_told: bool, caplog: Any) -> None:
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    fit(of)
    told = [r.message for r in caplog.records if "divides by a" in r.message]
    assert len(told) == (is_told and hvd.rank() == 0 and hvd.size() > 1)


class Trainer(keras.Sequential):
    """Trains a model of its own, which is not distributed, in its steps."""

    def train_step(self, data: Any) -> Any:
        if not hasattr(self, "inner"):
            self.inner = keras.Sequential([keras.layers.Dense(1)])
            self.inner.compile("sgd", "mse")
        x, y = data[:2]
        self.inner.fit(x, y[:, :1], verbose=0)
        return super().train_step(data)


@pytest.mark.skipif(BACKEND != "torch", reason="its steps are not compiled")
def test_a_step_may_train_another_model(caplog: Any) -> None:
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    fit("mse", Trainer)
    assert "adds up the" not in caplog.text


class Steps(keras.Sequential):
    """Changes its gradients by `of` before they are applied."""

    of: Callable[[Any], Any]

    def _loss(self, y: Any, y_pred: Any) -> Any:
        squares = ops.square(y_pred - y)
        is_sum = type(self).of is _of_sum
        return ops.sum(squares) if is_sum else ops.mean(squares)

    def train_step(self, *args: Any) -> Any:
        return getattr(self, f"_on_{BACKEND}")(*args)

    def _on_tensorflow(self, data: Any) -> Any:
        import tensorflow as tf

        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = self._loss(y, self(x, training=True))
        variables = self.trainable_variables
        gradients = type(self).of(tape.gradient(loss, variables))
        self.optimizer.apply(gradients, variables)
        return {"loss": loss}

    def _on_torch(self, data: Any) -> Any:
        import torch

        x, y = data[:2]
        self.zero_grad()
        loss = self._loss(y, self(x, training=True))
        loss.backward()
        variables = self.trainable_variables
        with torch.no_grad():
            gradients = type(self).of([v.value.grad for v in variables])
            self.optimizer.apply(gradients, variables)
        return {"loss": loss}

    def _on_jax(self, state: Any, data: Any) -> Any:
        import jax

        variables, others, optimizer, metrics = state
        x, y = data[:2]

        def loss_of(variables: Any) -> Any:
            y_pred, _ = self.stateless_call(variables, others, x, training=True)
            return self._loss(y, y_pred), y_pred

        differentiate = jax.value_and_grad(loss_of, has_aux=True)
        (loss, _), gradients = differentiate(variables)
        gradients = type(self).of(gradients)
        variables, optimizer = self.optimizer.stateless_apply(
            optimizer, gradients, variables
        )
        return {"loss": loss}, (variables, others, optimizer, metrics)


class OnMovedRows(Steps):
    """Trains on rows moved by the sign of their own gradient."""

    def _loss(self, y: Any, y_pred: Any) -> Any:
        import jax

        slope = jax.grad(lambda y: ops.mean(ops.tanh(y) * y))
        moved = slope(y) + jax.vmap(slope)(y)
        penalty = ops.mean(ops.square(moved))
        return super()._loss(y + ops.sign(moved), y_pred) + penalty


def _of_sum(gradients: Any) -> Any:
    return gradients


def _clipped(gradients: Any) -> Any:
    norm = ops.sqrt(sum(ops.sum(ops.square(each)) for each in gradients))
    return [each * ops.minimum(1.0, 0.1 / norm) for each in gradients]


def _clipped_by_framework(gradients: Any) -> Any:
    if BACKEND == "torch":
        import torch

        variables = [torch.nn.Parameter(ops.copy(each)) for each in gradients]
        for variable, each in zip(variables, gradients, strict=True):
            variable.grad = each
        torch.nn.utils.clip_grad_norm_(variables, 0.1)
        return [variable.grad for variable in variables]
    if BACKEND == "jax":
        optax = pytest.importorskip("optax")

        return optax.clip_by_global_norm(0.1).update(gradients, None)[0]
    import tensorflow as tf

    return tf.clip_by_global_norm(gradients, 0.1)[0]


def _values_clipped(gradients: Any) -> Any:
    if BACKEND == "torch":
        for each in gradients:
            each.data.clamp_(-0.1, 0.1)
        return gradients
    return [ops.clip(each, -0.1, 0.1) for each in gradients]


def _signs(gradients: Any) -> Any:
    return list(map(ops.sign, gradients))


def _centred(gradients: Any) -> Any:
    return [each - ops.mean(each, 0) for each in gradients]


def _dense(gradients: Any) -> Any:
    if BACKEND != "tensorflow":
        return gradients
    import tensorflow as tf

    slices = [
        tf.IndexedSlices(each, tf.range(SIZE), tf.shape(each))
        for each in gradients
    ]
    return list(map(tf.convert_to_tensor, slices))


def _halved(gradients: Any) -> Any:
    return [0.5 * each + 0.0 for each in gradients]


def _weighed(gradients: Any) -> Any:
    factor = keras.random.uniform((), seed=1)
    return [ops.cast(each * factor, "float32") for each in gradients]


@pytest.mark.parametrize(
    ("of", "words"),
    [
        (_of_sum, "adds up the"),
        (_clipped, "changes its gradients"),
        (_clipped_by_framework, "changes its gradients"),
        (_values_clipped, "changes its gradients"),
        (_signs, "changes its gradients"),
        (_centred, ""),
        (_dense, ""),
        (_halved, ""),
        (_weighed, ""),
    ],
)
def test_what_a_step_does_is_told(of: Any, words: str, caplog: Any) -> None:
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    fit(None, type("Own", (Steps,), {"of": of}))
    told = [r.message for r in caplog.records if "Received:" in r.message]
    is_told = words != "" and hvd.rank() == 0 and hvd.size() > 1
    assert len(told) == int(is_told)
    assert all(words in each and "`train_step` of Own" in each for each in told)


@pytest.mark.skipif(BACKEND != "jax", reason="its gradients nest")
@pytest.mark.parametrize("of", [_halved, _clipped])
def test_gradients_of_inputs_are_none_of_a_step(of: Any, caplog: Any) -> None:
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    fit(None, type("Own", (OnMovedRows,), {"of": of}))
    is_told = of is _clipped and hvd.rank() == 0 and hvd.size() > 1
    assert ("changes its gradients" in caplog.text) == is_told
