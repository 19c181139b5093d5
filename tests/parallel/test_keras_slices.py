"""Optimizers get the slices of embeddings that one process has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

LENGTH = 4
ops = keras.ops


class Looked(keras.layers.Layer):
    """Adds what a table has for indices, which `find` returns."""

    def __init__(self, find: Callable[[Any], Any], times: int = 1) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(9, 3)
        self.find = find
        self.times = times

    def build(self, shape: Any) -> None:
        self.table.build(None)

    def call(self, tokens: Any) -> Any:
        found = [self.table(self.find(tokens)) for _ in range(self.times)]
        return found[0] + sum(ops.tanh(each) for each in found[1:])


class Both(Looked):
    """Looks tokens and positions up in one table."""

    def call(self, tokens: Any) -> Any:
        return self.table(tokens) + self.table(ops.arange(LENGTH))


class Relative(Looked):
    """Each pair of positions has a place in a table, as in Swin."""

    def call(self, tokens: Any) -> Any:
        pairs = np.add.outer(np.arange(LENGTH), np.arange(LENGTH))
        bias = ops.take(self.table.embeddings, pairs.ravel(), axis=0)
        return ops.mean(ops.reshape(bias, (LENGTH, LENGTH, 3)), axis=0)


@tf.function
def hidden_positions(tokens: Any) -> Any:
    return tf.range(tf.shape(tokens)[1])


def tiled(tokens: Any) -> Any:
    positions = ops.arange(LENGTH)[None]
    return ops.tile(positions, [ops.shape(tokens)[0], 1])


LAYERS: dict[str, Callable[[], keras.layers.Layer]] = {
    "positions": lambda: Looked(lambda tokens: ops.arange(LENGTH)),
    "one row of positions": lambda: Looked(lambda _: ops.arange(LENGTH)[None]),
    "positions of the length": lambda: Looked(
        lambda tokens: ops.arange(ops.shape(tokens)[1])
    ),
    "positions twice": lambda: Looked(lambda _: ops.arange(LENGTH), 2),
    "hidden positions": lambda: Looked(hidden_positions),
    "a position a row": lambda: Looked(tiled),
    "segments": lambda: Looked(ops.zeros_like),
    "tokens": lambda: Looked(lambda tokens: tokens),
    "tokens and positions": lambda: Both(ops.arange),
    "relative positions": lambda: Relative(ops.arange),
}

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(0.05),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.05, momentum=0.5),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
    "clipnorm": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.05),
}

CASES: list[Any] = [
    ("positions", "adam", {}),
    ("tokens and positions", "rmsprop", {}),
]
QUICK = {
    "a position a row",
    "hidden positions",
    "positions of the length",
    "relative positions",
}
CASES += [
    pytest.param(
        layer,
        "adam",
        {},
        marks=pytest.mark.thorough(*((1, 4) if layer in QUICK else ())),
    )
    for layer in LAYERS
    if layer != "positions"
]
CASES += [
    pytest.param(*case, marks=pytest.mark.thorough)
    for case in [
        *(("tokens and positions", name, {}) for name in OPTIMIZERS),
        ("positions", "rmsprop", {"jit_compile": True}),
        ("tokens and positions", "adam", {"jit_compile": True}),
        ("positions", "adam", {"run_eagerly": True}),
        ("tokens", "adam", {"run_eagerly": True}),
        ("positions twice", "adam", {"steps_per_execution": 2}),
    ]
    if case not in [*CASES, ("tokens and positions", "adam", {})]
]


def trained(
    layer: str, optimizer: Any, batches: Any, options: dict[str, Any]
) -> list[np.ndarray]:
    keras.utils.set_random_seed(5)
    tokens = keras.Input((LENGTH,), dtype="int32")
    hidden = keras.layers.Embedding(20, 3)(tokens)
    hidden = keras.layers.Flatten()(hidden + LAYERS[layer]()(tokens))
    model = keras.Model(tokens, keras.layers.Dense(1)(hidden))
    model.compile(optimizer, "mse", **options)
    model.fit(batches, epochs=2, shuffle=False, verbose=0)
    return model.get_weights()


@pytest.mark.parametrize(
    ("layer", "optimizer", "options"),
    CASES,
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_slices_are_those_of_one_process(layer, optimizer, options) -> None:
    num_rows = 48 if options.get("jit_compile") else 53
    generator = np.random.default_rng(3)
    x = generator.integers(0, 9, (num_rows, LENGTH)).astype("int32")
    y = generator.normal(size=(num_rows, 1)).astype("float32")
    make = OPTIMIZERS[optimizer]
    share = hvd.shard((x, y), batch_size=24 // hvd.size())
    ours = trained(layer, hvd.DistributedOptimizer(make()), share, options)
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(24)
    alone = trained(layer, make(), data, options)
    kt.assert_close(ours, alone, 1e-5)
    kt.assert_equal_on_all_ranks(ours)


def test_lengths_may_differ_by_rank(rank, size) -> None:
    """Each rank pads to the longest of its own rows."""
    table = tf.Variable(tf.ones([9, 2]))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.RMSprop(0.1))
    optimizer.build([table])

    @tf.function(input_signature=[tf.TensorSpec([None, None])])
    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            rows = tf.gather(table, tf.range(tf.shape(x)[1]))
            loss = tf.reduce_sum(rows)
        gradients = [tape.gradient(loss, table)]
        optimizer.apply(gradients, [table])

    step(tf.ones([2, rank + 1]))
    alone = tf.Variable(tf.ones([9, 2]))
    plain = keras.optimizers.RMSprop(0.1)
    counts = [sum(r + 1 > i for r in range(size)) for i in range(size)]
    slices = tf.IndexedSlices(
        tf.repeat(tf.constant(counts, "float32")[:, None] / size, 2, axis=1),
        tf.range(size),
        tf.constant([9, 2]),
    )
    plain.apply([slices], [alone])
    kt.assert_close([table.numpy()], [alone.numpy()], 1e-6)
