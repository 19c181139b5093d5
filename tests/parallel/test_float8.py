"""Training in float8: all ranks scale alike."""

from __future__ import annotations

from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest

import hvd_keras as hvd

pytestmark = pytest.mark.thorough(1, 4)

THOROUGH = pytest.mark.thorough


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"jit_compile": True}, marks=THOROUGH),
        pytest.param({"accumulate": 2}, marks=THOROUGH),
        pytest.param({"scaled": True}, marks=THOROUGH),
    ],
)
def test_scales_and_histories_are_those_of_all_ranks(
    options: dict[str, Any],
) -> None:
    accumulate = options.get("accumulate")

    def train(distribute: Any, data: Any) -> keras.Model:
        keras.utils.set_random_seed(3)
        model = kt.functional_model()
        model.quantize("float8")
        optimizer = keras.optimizers.SGD(
            0.05, gradient_accumulation_steps=accumulate
        )
        optimizer = distribute(optimizer)
        if options.get("scaled"):
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        jit_compile = options.get("jit_compile", False)
        model.compile(optimizer, "mse", jit_compile=jit_compile)
        model.fit(data, verbose=0)
        return model

    x, y = kt.regression_data()
    x[1::2] *= 3.0  # the ranks see different ranges
    alone = train(lambda optimizer: optimizer, kt.whole_batches(x, y))
    model = train(hvd.DistributedOptimizer, kt.shares(x, y))
    kt.assert_equal_on_all_ranks(
        [np.asarray(v.numpy()) for v in [*model.weights]]
    )
    kt.assert_equal_on_all_ranks([model.predict(x, verbose=0)])
    for layer, other in zip(model.layers[1:], alone.layers[1:], strict=True):
        np.testing.assert_allclose(
            layer.inputs_amax_history.numpy(),
            other.inputs_amax_history.numpy(),
            rtol=0.05,
        )
