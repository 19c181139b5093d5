"""Checks in short that an installed hvd_keras works with JAX, for tools/*.sh.

Run it on 2 or more ranks, with KERAS_BACKEND=jax, as tools/smoke_test.py.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np

import hvd_keras as hvd
import hvd_keras.jax as hvd_jax


def check_collectives() -> None:
    size = hvd.size()
    mine = jnp.full([32, 64], hvd.rank() + 1.0)

    @jax.jit
    def many(x: jax.Array) -> list[jax.Array]:
        return [
            hvd_jax.allreduce(x * i, hvd.Sum, name=f"many.{i}")
            for i in range(12)
        ]

    for _ in range(20):
        for i, one in enumerate(many(mine)):
            np.testing.assert_array_equal(one, i * size * (size + 1) / 2)


def check_fit() -> None:
    keras.utils.set_random_seed(hvd.rank())  # the broadcast must undo this
    x = np.random.default_rng(hvd.rank()).normal(size=(64, 4))
    y = x.sum(axis=1, keepdims=True)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[broadcast])
    weights = np.concatenate([w.ravel() for w in model.get_weights()])
    for other in hvd.allgather_object(weights):
        np.testing.assert_array_equal(weights, other)


def main() -> None:
    hvd.init()
    check_collectives()
    check_fit()
    if hvd.rank() == 0:
        versions = f"JAX {jax.__version__}, Keras {keras.__version__}"
        print(f"smoke test passed: {versions}, {hvd.size()} ranks", flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    main()
