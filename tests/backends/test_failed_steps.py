"""A step that fails leaves the model as it was before."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import small_training as small

import hvd_keras as hvd
from hvd_keras import _native


class Interfere(keras.callbacks.Callback):
    """Sends, on rank 1, something else than the gradients of the step."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if batch == 3:
            self.weights = self.model.get_weights()
            if hvd.rank() == 1:
                odd = np.zeros(3, np.float64)
                _native.core().allreduce("fails/bucket_0", [odd], 0)


def test_a_failed_step_leaves_the_model_as_it_was() -> None:
    model = small.model()
    optimizer = hvd.DistributedOptimizer(
        keras.optimizers.SGD(0.1, momentum=0.9), name="fails"
    )
    model.compile(optimizer, "mse", metrics=["mae"])
    interfere = Interfere()
    data = small.shares(*small.data())
    with pytest.raises(hvd.MismatchError, match="'fails/bucket_0'"):
        model.fit(data, verbose=0, callbacks=[interfere])
    weights = small.on_all_ranks(model.get_weights())
    for value, wanted in zip(weights, interfere.weights, strict=True):
        np.testing.assert_array_equal(value, wanted)
    slots = [variable.numpy() for variable in optimizer.variables]
    assert all(np.isfinite(slot).all() for slot in slots)
    model.fit(data, verbose=0)
    small.on_all_ranks(model.get_weights())
