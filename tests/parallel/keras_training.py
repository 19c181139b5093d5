"""Data, models and comparisons for the tests of the Keras layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import hvd_keras as hvd

BATCH = 24  # rows of a global batch; 1, 2, 3 and 4 ranks take equal shares
NUM_BATCHES = 8
NUM_FEATURES = 6


def regression_data(
    num_rows: int = BATCH * NUM_BATCHES,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the same rows on every rank."""
    generator = np.random.default_rng(7)
    x = generator.normal(size=(num_rows, NUM_FEATURES)).astype(np.float32)
    y = generator.normal(size=(num_rows, 1)).astype(np.float32)
    return x, y


def whole_batches(
    x: np.ndarray, y: np.ndarray, num_rows: int = BATCH
) -> tf.data.Dataset:
    """Returns the batches that one process trains on."""
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(num_rows)


def shares(x: np.ndarray, y: np.ndarray) -> tf.data.Dataset:
    """Returns this rank's rows of each of these batches."""
    share = BATCH // hvd.size()
    first = hvd.rank() * share
    rows = slice(first, first + share)
    return whole_batches(x, y).map(lambda a, b: (a[rows], b[rows]))


def uneven_share(count: int) -> slice:
    """Returns this rank's part of `count` rows; parts are as 1:2:3:..."""
    ends = np.cumsum([0, *range(1, hvd.size() + 1)])
    ends = ends * count // ends[-1]
    return slice(int(ends[hvd.rank()]), int(ends[hvd.rank() + 1]))


def functional_model() -> keras.Model:
    inputs = keras.Input((NUM_FEATURES,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


class SubclassedModel(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(5, activation="tanh")
        self.out = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.out(self.hidden(inputs))


class CustomStepModel(keras.Model):
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.abs(self(x, training=True) - y))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"distance": loss}


def custom_step_model() -> keras.Model:
    inputs = keras.Input((NUM_FEATURES,))
    hidden = keras.layers.Dense(5, activation="tanh")(inputs)
    return CustomStepModel(inputs, keras.layers.Dense(1)(hidden))


def embedding_model() -> keras.Model:
    """Looks up some rows twice and some never, by the features' signs."""
    inputs = keras.Input((NUM_FEATURES,))
    keys = keras.ops.cast(keras.ops.abs(inputs) * 4.0, "int32")
    rows = keras.layers.Embedding(24, 3)(keys)
    hidden = keras.layers.Flatten()(rows)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def build(make_model: Callable[[], keras.Model]) -> keras.Model:
    """Makes a model with the same initial weights on all ranks."""
    keras.utils.set_random_seed(11)
    return make_model()


def assert_equal_on_all_ranks(values: list[np.ndarray]) -> None:
    """Compares bit for bit."""
    for rank, other in enumerate(hvd.allgather_object(list(values))):
        for ours, theirs in zip(values, other, strict=True):
            assert ours.dtype == theirs.dtype
            assert ours.tobytes() == theirs.tobytes(), f"rank {rank} differs"


def assert_close(
    values: list[np.ndarray], expected: list[np.ndarray], tolerance: float
) -> None:
    for value, wanted in zip(values, expected, strict=True):
        np.testing.assert_allclose(
            value, wanted, rtol=tolerance, atol=tolerance
        )
