"""Checks in short that an installed hvd_keras works, for tools/*.sh.

It runs the collectives, eager and in a `tf.function`, a gradient, and `fit`;
then the weights must be equal on all ranks. It does so with XLA and without.
Run it on 2 or more ranks:

    python -m hvd_keras.run -np 2 -- python tools/smoke_test.py
"""

from __future__ import annotations

import os
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import hvd_keras as hvd


def check_collectives() -> None:
    rank, size = hvd.rank(), hvd.size()
    total = size * (size + 1) / 2
    mine = tf.constant([1.0, 2.0]) * (rank + 1)

    expected = np.array([1.0, 2.0]) * total
    np.testing.assert_array_equal(hvd.allreduce(mine, hvd.Sum), expected)
    np.testing.assert_array_equal(hvd.allreduce(mine), expected / size)
    np.testing.assert_array_equal(
        tf.function(lambda x: hvd.allreduce(x, hvd.Sum))(mine), expected
    )
    for one in hvd.grouped_allreduce([mine, mine], hvd.Sum):
        np.testing.assert_array_equal(one, expected)

    rows = tf.fill([rank + 1, 2], rank)
    np.testing.assert_array_equal(
        hvd.allgather(rows),
        np.concatenate([np.full((r + 1, 2), r) for r in range(size)]),
    )
    np.testing.assert_array_equal(
        hvd.broadcast(mine, root_rank=size - 1), np.array([1.0, 2.0]) * size
    )


def check_xla() -> None:
    rank, size = hvd.rank(), hvd.size()
    total = size * (size + 1) / 2

    # The number of rows is unknown until XLA compiles the function.
    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None, 64])])
    def many(x: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        factor = tf.eye(64)
        sums = [
            hvd.allreduce(x @ factor * float(i), hvd.Sum) for i in range(12)
        ]
        return sums, hvd.allgather(x)

    mine = tf.fill([32, 64], rank + 1.0)
    for _ in range(20):
        sums, rows = many(mine)
        for i, one in enumerate(sums):
            np.testing.assert_array_equal(one, np.full([32, 64], i * total))
        np.testing.assert_array_equal(
            rows[:, 0], np.arange(32 * size) // 32 + 1
        )
    masked = tf.function(
        lambda x: hvd.allreduce(tf.boolean_mask(x, x[:, 0] > 0), name="masked"),
        jit_compile=True,
    )
    check_error(masked, mine, NotImplementedError, "Pad it to a fixed")
    differ = tf.function(
        lambda x: hvd.allreduce(x, [hvd.Min, hvd.Max][rank % 2], name="x"),
        jit_compile=True,
    )
    check_error(
        differ, mine, hvd.MismatchError, "ranks disagree on the reduce op"
    )


def check_error(
    call: Callable[[tf.Tensor], object],
    x: tf.Tensor,
    expected: type[Exception],
    part: str,
) -> None:
    try:
        call(x)
    except expected as error:
        if part not in str(error):
            raise
    else:
        raise AssertionError(f"No error. Expected: {part!r}.")


def check_gradient(jit_compile: bool) -> None:
    @tf.function(jit_compile=jit_compile)
    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(hvd.allreduce(x, hvd.Sum)) * (hvd.rank() + 1.0)
        return tape.gradient(y, x)

    size = hvd.size()
    np.testing.assert_array_equal(
        gradient(tf.ones([3])), np.full(3, size * (size + 1) / 2)
    )


def check_fit(jit_compile: bool) -> None:
    keras.utils.set_random_seed(hvd.rank())  # the broadcast must undo this
    x = np.random.default_rng(hvd.rank()).integers(9, size=(64, 4))
    y = x.sum(axis=1, keepdims=True)
    model = keras.Sequential(
        [
            keras.layers.Input((4,), dtype="int32"),
            keras.layers.Embedding(9, 3),  # has a sparse gradient
            keras.layers.Flatten(),
            keras.layers.Dense(8, activation="relu"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)),
        "mse",
        jit_compile=jit_compile,
    )
    model.fit(
        x,
        y,
        batch_size=16,
        epochs=2,
        verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
    )
    weights = np.concatenate([w.ravel() for w in model.get_weights()])
    for other in hvd.allgather(weights[np.newaxis]).numpy():
        np.testing.assert_array_equal(weights, other)


def main() -> None:
    hvd.init()
    if hvd.size() < 2:
        raise SystemExit(
            f"Must run on 2 or more ranks. Received: {hvd.size()}."
        )
    check_collectives()
    check_xla()
    for jit_compile in (False, True):
        check_gradient(jit_compile)
        check_fit(jit_compile)
    if hvd.rank() == 0:
        versions = f"TensorFlow {tf.__version__}, Keras {keras.__version__}"
        print(f"smoke test passed: {versions}, {hvd.size()} ranks", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
