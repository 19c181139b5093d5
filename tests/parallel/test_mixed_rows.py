"""Steps whose losses compare rows with each other are told, others not."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd

pytestmark = pytest.mark.thorough(4)

ops = keras.ops
SIZE = 8  # rows of a rank, features and units
CODE = 5


def similarities(rows: Any, others: Any) -> Any:
    rows, others = (ops.normalize(each, axis=-1) for each in (rows, others))
    return ops.matmul(rows, ops.transpose(others))


def in_batch_loss(y: Any, rows: Any) -> Any:
    """Row i of y belongs to row i of the outputs, and to no other one."""
    return keras.losses.sparse_categorical_crossentropy(
        ops.arange(SIZE), similarities(rows, y), from_logits=True
    )


class Lookup(keras.Sequential):
    """Compares rows with those of an embedding, as a recommender does."""

    def __init__(self, layers: Any) -> None:
        super().__init__(layers)
        self.codes = keras.layers.Embedding(3 * SIZE, CODE)
        self.codes.build()

    def compute_loss(
        self, x: Any, y: Any, y_pred: Any, *_: Any, **__: Any
    ) -> Any:
        codes = self.codes(ops.argmax(y, axis=-1))
        scores = ops.matmul(y_pred, ops.transpose(codes))
        return ops.mean(ops.logsumexp(scores, axis=-1))


def supervised_loss(y: Any, rows: Any) -> Any:
    """Rows of the same class belong together."""
    classes = ops.argmax(y, axis=-1)
    same = ops.equal(classes[:, None], classes[None, :])
    scores = ops.log_softmax(similarities(rows, rows), axis=-1)
    return -ops.mean(scores * ops.cast(same, "float32"), axis=-1)


def distance_loss(y: Any, rows: Any) -> Any:
    """Keeps rows apart: their distances, by broadcasting."""
    apart = rows[:, None] - rows[None]
    return ops.mean(ops.exp(-ops.sum(apart**2, axis=-1)), axis=-1)


def ranking_loss(y: Any, rows: Any) -> Any:
    """A row with the larger target gets the larger score."""
    scores, wanted = rows[:, 0], y[:, 0]
    margins = ops.expand_dims(scores, 1) - scores
    signs = ops.sign(wanted[:, None] - wanted[None, :])
    return ops.mean(ops.softplus(-margins * signs), axis=-1)


class Sum(keras.layers.Layer):
    """Adds to each row a number of all rows: `tensordot` sums over two axes."""

    def call(self, x: Any) -> Any:
        return x + ops.tensordot(x, x + 1.0, 2)


def gathered_loss(y: Any, rows: Any) -> Any:
    rows = _gather()(rows, name="rows")
    return ops.mean(similarities(rows, rows), axis=-1)[: ops.shape(y)[0]]


def _gather() -> Any:
    name = keras.backend.backend()
    if name == "tensorflow":
        return hvd.allgather
    if name == "jax":
        import hvd_keras.jax as module
    else:
        import hvd_keras.torch as module
    return module.allgather


class Views(keras.Sequential):
    """Compares two views of each row in a `compute_loss` of its own."""

    def compute_loss(self, x: Any = None, *_: Any, **__: Any) -> Any:
        views = ops.concatenate([self(x), self(2.0 * x)], axis=0)
        return ops.mean(ops.logsumexp(similarities(views, views), axis=-1))


class Attention(keras.layers.Layer):
    """Compares the places of a row, not rows."""

    def call(self, x: Any) -> Any:
        x = x[:, :, None] * ops.ones([1, 1, SIZE])
        scores = ops.matmul(x, ops.transpose(x, [0, 2, 1]))
        return ops.mean(scores, axis=-1)


class Frozen(keras.layers.Layer):
    """Multiplies by weights that are not trained, in another precision."""

    def __init__(self) -> None:
        is_torch = keras.backend.backend() == "torch"
        super().__init__(dtype="float64" if is_torch else None)
        self.parts = [
            keras.layers.Dense(units, dtype=self.dtype_policy)
            for units in (CODE, SIZE)
        ]
        self.trainable = False

    def call(self, x: Any) -> Any:
        for dense in self.parts:
            x = dense(ops.cast(x, self.compute_dtype))
        return ops.cast(x, "float32")


class Places(keras.layers.Layer):
    """Compares the places of a row by broadcasting, and with positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(SIZE, 1)

    def call(self, x: Any) -> Any:
        places = ops.arange(SIZE)
        is_before = ops.cast(places[:, None] >= places[None], "float32")
        apart = (x[:, :, None] - x[:, None, :]) * is_before
        bias = self.table(places)
        learned = bias + ops.transpose(bias)
        centred = x - ops.mean(x, axis=-1, keepdims=True)
        return centred + ops.mean(apart * learned, axis=-1)


class ByKeywords(keras.layers.Layer):
    """Calls torch by keywords, and sums over rows by `tensordot`."""

    def call(self, x: Any) -> Any:
        if keras.backend.backend() != "torch":
            return x
        import torch

        gram = torch.tensordot(x, x, dims=([0], [0]))
        return torch.matmul(input=x, other=gram)


class Narrow(keras.layers.Layer):
    """Has weights of one number, whose gradients are sums over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = [keras.layers.Dense(1) for _ in range(2)]

    def call(self, x: Any) -> Any:
        x = self.narrow[1](self.narrow[0](x[:, :, None]))
        return x[:, :, 0] + self.narrow[1](x[:, 0])


def fit(
    loss: Any, kind: Any = keras.Sequential, *layers: Any, units: int = SIZE
) -> Any:
    keras.utils.set_random_seed(1)
    dense = [keras.layers.Dense(n, activation="tanh") for n in (SIZE, units)]
    model = kind([keras.Input((SIZE,)), *layers, *dense])
    model.compile(hvd.DistributedOptimizer("adam"), loss)
    rows = np.random.default_rng(2).normal(size=(4 * SIZE * hvd.size(), SIZE))
    x = rows.astype("f")
    share = hvd.shard((x, x[:, :units]), batch_size=SIZE)
    begin = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(share, verbose=0, callbacks=[begin])
    return model


@pytest.mark.parametrize(
    ("loss", "kind", "words"),
    [
        (in_batch_loss, keras.Sequential, "the step of Sequential"),
        (supervised_loss, keras.Sequential, "the step of Sequential"),
        (distance_loss, keras.Sequential, "the step of Sequential"),
        (ranking_loss, keras.Sequential, "the step of Sequential"),
        (None, Views, "`compute_loss` of Views"),
        (None, Lookup, "`compute_loss` of Lookup"),
        ("mse", Sum, "the step of Sequential"),
    ],
)
def test_losses_of_several_rows_are_told(
    loss: Any, kind: Any, words: str, caplog: Any
) -> None:
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    if kind is Sum:
        fit(loss, keras.Sequential, Sum(), units=CODE)
    else:
        fit(loss, kind, units=CODE)
    told = [r.message for r in caplog.records if "by each other" in r.message]
    assert len(told) == (hvd.rank() == 0 and hvd.size() > 1)
    assert all(words in each for each in told)


@pytest.mark.parametrize(
    ("loss", "layers"),
    [
        ("mse", []),
        ("mse", [Attention]),
        ("mse", [Narrow]),
        ("mse", [Places]),
        ("mse", [Frozen]),
        ("mse", [ByKeywords]),
        (gathered_loss, []),
    ],
)
def test_losses_of_single_rows_are_not(
    loss: Any, layers: Any, caplog: Any
) -> None:
    """Rows, features and units are equally many: shapes look alike."""
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    units = CODE if loss is gathered_loss else SIZE
    fit(loss, keras.Sequential, *(each() for each in layers), units=units)
    assert "by each other" not in caplog.text


@pytest.mark.parametrize(
    ("loss", "is_told"),
    [
        (keras.losses.Dice(), True),
        ("tversky", True),
        (keras.losses.Dice(axis=1), False),
    ],
)
def test_losses_of_whole_batches_are_told(
    loss: Any, is_told: bool, caplog: Any
) -> None:
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    fit(loss)
    told = [r.message for r in caplog.records if "axis=None" in r.message]
    assert len(told) == (hvd.rank() == 0 and hvd.size() > 1 and is_told)
