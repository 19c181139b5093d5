"""What the tests of Keras on JAX and torch share: data, a model, one step."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

import hvd_keras as hvd

BATCH = 16  # rows of a global batch
NUM_BATCHES = 6
NUM_FEATURES = 6


def data(num_rows: int = BATCH * NUM_BATCHES) -> tuple[np.ndarray, np.ndarray]:
    """Returns the same rows on every rank."""
    generator = np.random.default_rng(7)
    x = generator.normal(size=(num_rows, NUM_FEATURES)).astype(np.float32)
    y = generator.normal(size=(num_rows, 1)).astype(np.float32)
    return x, y


def shares(x: np.ndarray, y: np.ndarray) -> keras.utils.PyDataset:
    """Returns this rank's rows of each global batch."""
    return hvd.shard((x, y), batch_size=BATCH // hvd.size(), policy="drop")


def model(
    seed: int = 3, *, dropout: float = 0.0, dropout_seed: int | None = 1
) -> keras.Model:
    """Returns a model whose weights depend on the seed alone."""
    made = keras.Sequential(
        [
            keras.Input((NUM_FEATURES,)),
            keras.layers.Dense(5, activation="tanh"),
            keras.layers.Dropout(dropout, seed=dropout_seed),
            keras.layers.Dense(1),
        ]
    )
    generator = np.random.default_rng(seed)
    made.set_weights([generator.normal(size=w.shape) / 2 for w in made.weights])
    return made


def on_all_ranks(values: Any) -> list[Any]:
    """Asserts that the ranks have the same arrays, bit for bit."""
    values = [np.asarray(value) for value in values]
    for other in hvd.allgather_object(values):
        for ours, theirs in zip(values, other, strict=True):
            assert ours.tobytes() == theirs.tobytes()
    return values
