"""A rank that reduces packed, by hand and in `fit`; writes what it gets.

python packed_rank.py FOLDER COMPRESSION [jit]
"""

from __future__ import annotations

import os
import sys

import keras
import numpy as np
from sklearn.datasets import load_digits

import hvd_keras as hvd

LENGTHS = (100_003, 4096, 100)  # the last one travels as it is
WHOLE = 12_345  # of integers
AGAIN = 16  # reductions of the first array under one name


def inputs(rank: int) -> list[np.ndarray]:
    """Returns what a rank reduces."""
    random = np.random.default_rng(rank)
    floats = [random.standard_normal(n, np.float32) for n in LENGTHS]
    return [*floats, random.integers(0, 99, WHOLE, np.int32)]


def _reduced(compression: type[hvd.Compressor], jit: bool) -> list[np.ndarray]:
    """Returns their sums, by the framework's own function.

    Then comes the sum of the first alone, when it comes first and, if its
    residuals are kept, the mean of many.
    """
    mine = inputs(hvd.rank())
    options = {"op": hvd.Sum, "compression": compression}
    backend = keras.backend.backend()
    if backend == "jax":
        import jax

        import hvd_keras.jax as hvd_jax

        def reduce(arrays):
            return hvd_jax.grouped_allreduce(arrays, name="group", **options)

        results = jax.jit(reduce)(mine)
        again = [
            hvd_jax.allreduce(mine[0], name="alone", **options)
            for _ in range(AGAIN)
        ]
    elif backend == "torch":
        import torch

        import hvd_keras.torch as hvd_torch

        tensors = [torch.tensor(array) for array in mine]
        results = hvd_torch.grouped_allreduce(tensors, name="group", **options)
        again = [
            hvd_torch.allreduce(tensors[0], name="alone", **options)
            for _ in range(AGAIN)
        ]
    else:
        import tensorflow as tf

        @tf.function(jit_compile=jit)
        def reduce(arrays):
            return hvd.grouped_allreduce(arrays, name="group", **options)

        results = reduce([tf.constant(array) for array in mine])
        again = [
            hvd.allreduce(mine[0], name="alone", **options)
            for _ in range(AGAIN)
        ]
    arrays = list(map(np.asarray, again))
    mean = np.mean(arrays, axis=0, dtype=np.float64)
    return [*map(np.asarray, results), arrays[0], mean]


def _trained(
    compression: type[hvd.Compressor], jit: bool
) -> tuple[list[np.ndarray], float]:
    """Returns weights that have learned the digits, and their accuracy."""
    keras.utils.set_random_seed(1)
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(1).permutation(len(images))
    images, labels = images[order].astype("float32") / 16.0, labels[order]
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((64,)),
            layers.Dense(256, activation="relu"),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9)
        if isinstance(compression, hvd.Compression.PowerSGD)
        else keras.optimizers.Adam(),
        compression=compression,
    )
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit,
    )
    own = slice(hvd.rank(), 1500, hvd.size())
    model.fit(
        images[own],
        labels[own],
        batch_size=25,
        epochs=10,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    predicted = np.argmax(model.predict(images[1500:], verbose=0), axis=-1)
    return model.get_weights(), float(np.mean(predicted == labels[1500:]))


def main(folder: str, name: str, jit: bool) -> None:
    hvd.init()
    compression = getattr(hvd.Compression, name)
    if name == "PowerSGD":
        compression = compression(rank=8)
    reduced = _reduced(compression, jit)
    _, exact = _trained(hvd.Compression.none, jit)
    weights, accuracy = _trained(compression, jit)
    np.savez(
        f"{folder}/{os.environ['HVD_RANK']}.npz",
        *reduced,
        *weights,
        accuracies=[exact, accuracy],
    )
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:] == ["jit"])
