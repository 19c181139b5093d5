"""A failed step leaves the model as it was before."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import small_training as small

import hvd_keras as hvd
from hvd_keras import _native


class Interfere(keras.callbacks.Callback):
    """On rank 1, sends another array in place of the step's gradients."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 3:
            self.weights = self.model.get_weights()
            if hvd.rank() == 1:
                odd = np.zeros(3, np.float64)
                name = self.model.optimizer.hvd_reducer.name()
                _native.core().allreduce(f"{name}/bucket_0", [odd], 0)


def test_a_failed_step_leaves_the_model_as_it_was() -> None:
    model = small.model()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), name="fails"
    )
    model.compile(optimizer, "mse", metrics=["mae"])
    interfere = Interfere()
    data = small.shares(*small.data())
    with pytest.raises(hvd.MismatchError, match=r"'fails.*/bucket_0'"):
        model.fit(data, verbose=0, callbacks=[interfere])
    weights = small.on_all_ranks(model.get_weights())
    for value, wanted in zip(weights, interfere.weights, strict=True):
        np.testing.assert_array_equal(value, wanted)
    slots = [variable.numpy() for variable in optimizer.variables]
    assert all(np.isfinite(slot).all() for slot in slots)
    shared = [weight.copy() for weight in weights]
    model.fit(data, verbose=0)
    for value, wanted in zip(weights, shared, strict=True):
        np.testing.assert_array_equal(value, wanted)
    small.on_all_ranks(model.get_weights())


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX's matter")
def test_fit_frees_the_state_before_the_step_at_its_end() -> None:
    import jax

    numbers = []

    def count(*_: Any, **__: Any) -> None:
        shapes = [array.shape for array in jax.live_arrays()]
        numbers.append(shapes.count((small.NUM_FEATURES, 41)))

    keras.utils.set_random_seed(1)
    layers = [keras.Input((small.NUM_FEATURES,)), keras.layers.Dense(41)]
    model = keras.Sequential(layers)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(hvd.DistributedOptimizer(optimizer, name="memory"), "mse")
    during = keras.callbacks.LambdaCallback(on_train_batch_end=count)
    data = small.shares(*small.data())
    model.fit(data, verbose=0, callbacks=[during])
    count()
    assert numbers[1:] == [4] * (small.NUM_BATCHES - 1) + [2]
