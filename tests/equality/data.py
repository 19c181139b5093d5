"""Data and models of the cases."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import hvd_keras as hvd

GLOBAL_BATCH = 24
NUM_STEPS = 6  # of a sequence
NUM_WORDS = 12

Data = tuple[Any, ...]


def rows(num_rows: int) -> Data:
    generator = np.random.default_rng(7)
    x = generator.normal(size=(num_rows, 5)).astype(np.float32)
    y = generator.normal(size=(num_rows, 1)).astype(np.float32)
    return x, y


def labelled_rows(num_rows: int) -> Data:
    x, y = rows(num_rows)
    return x, (y > 0.0).astype(np.float32)


def weighted_rows(num_rows: int) -> Data:
    """Weights that grow, so that the ranks' sums differ."""
    weights = np.linspace(0.0, 3.0, num_rows, dtype=np.float32)
    return (*rows(num_rows), weights)


def sequences(num_rows: int) -> Data:
    """Words that 0 pads, sorted by length within each global batch."""
    generator = np.random.default_rng(5)
    lengths = generator.integers(1, NUM_STEPS + 1, num_rows)
    for first in range(0, num_rows, GLOBAL_BATCH):
        lengths[first : first + GLOBAL_BATCH].sort()
    words = generator.integers(1, NUM_WORDS, (num_rows, NUM_STEPS))
    words[np.arange(NUM_STEPS) >= lengths[:, None]] = 0
    y = generator.normal(size=(num_rows, NUM_STEPS, 1)).astype(np.float32)
    return words, y


def weighted_sequences(num_rows: int) -> Data:
    words, y = sequences(num_rows)
    weights = np.linspace(0.0, 3.0, words.size, dtype=np.float32)
    return words, y, weights.reshape(words.shape)


def two_sequences(num_rows: int) -> Data:
    """Two inputs with masks of their own, and a target of each."""
    a, y = sequences(num_rows)
    b = np.where(np.arange(num_rows)[:, None] % 5 == 0, 0, a[:, ::-1])
    return {"a": a, "b": b}, {"out_a": y, "out_b": -y}


def two_targets(num_rows: int) -> Data:
    x, y = rows(num_rows)
    return x, {"out_a": y, "out_b": -2.0 * y}


def dense_model(**options: Any) -> keras.Model:
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(
        4, activation="tanh", kernel_regularizer=options.pop("l2", None)
    )(inputs)
    return keras.Model(inputs, keras.layers.Dense(1, **options)(hidden))


def regularized_model() -> keras.Model:
    return dense_model(l2=keras.regularizers.L2(0.1))


def classifier() -> keras.Model:
    return dense_model(activation="sigmoid")


def sequence_model() -> keras.Model:
    inputs = keras.Input((NUM_STEPS,), dtype="int32")
    hidden = keras.layers.Embedding(NUM_WORDS, 3, mask_zero=True)(inputs)
    hidden = keras.layers.Dense(4, activation="tanh")(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def two_sequence_model() -> keras.Model:
    inputs, outputs = {}, {}
    for name in "ab":
        inputs[name] = keras.Input((NUM_STEPS,), dtype="int32", name=name)
        hidden = keras.layers.Embedding(NUM_WORDS, 3, mask_zero=True)(
            inputs[name]
        )
        layer = keras.layers.Dense(1, name=f"out_{name}")
        outputs[f"out_{name}"] = layer(hidden)
    return keras.Model(inputs, outputs)


def two_output_model() -> keras.Model:
    inputs = keras.Input((5,))
    hidden = keras.layers.Dense(4, activation="tanh")(inputs)
    outputs = {
        name: keras.layers.Dense(1, name=name)(hidden)
        for name in ("out_a", "out_b")
    }
    return keras.Model(inputs, outputs)


class Positions(keras.layers.Layer):
    """Adds what is learnt of each position."""

    def __init__(self) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(NUM_STEPS, 3)

    def build(self, shape: Any) -> None:
        self.table.build(None)

    def call(self, hidden: Any) -> Any:
        return hidden + self.table(keras.ops.arange(NUM_STEPS))


def positions_model() -> keras.Model:
    inputs = keras.Input((NUM_STEPS,), dtype="int32")
    hidden = Positions()(keras.layers.Embedding(NUM_WORDS, 3)(inputs))
    hidden = keras.layers.Dense(4, activation="tanh")(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def recurrent_model() -> keras.Model:
    inputs = keras.Input((NUM_STEPS,), dtype="int32")
    hidden = keras.layers.Embedding(NUM_WORDS, 3)(inputs)
    hidden = keras.layers.GRU(4, return_sequences=True)(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def convolutional_model() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Reshape((5, 1)),
            keras.layers.Conv1D(3, 2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.LayerNormalization(),
            keras.layers.Dense(1),
        ]
    )


def unbuilt_sequential() -> keras.Model:
    return keras.Sequential(
        [keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
    )


@keras.saving.register_keras_serializable("tests")
class Subclass(keras.Model):
    """Has weights once it has seen a batch."""

    def __init__(self, **kw: Any) -> None:
        super().__init__(**kw)
        self.hidden = keras.layers.Dense(4, activation="tanh")
        self.last = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.last(self.hidden(inputs))


def float8_model() -> keras.Model:
    model = dense_model()
    model.quantize("float8")
    return model


def normalized_model(
    layer: Any = keras.layers.BatchNormalization,
) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((5,)),
            # A bias would get rounding errors alone for gradients.
            keras.layers.Dense(4, use_bias=False),
            layer(momentum=0.5),
            keras.layers.Dense(1),
        ]
    )


def synchronized_model() -> keras.Model:
    return normalized_model(hvd.SyncBatchNormalization)
