"""Losses with unequal counts train as on one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
from equality import cases
from equality.check import assert_equals_one_process

import hvd_keras as hvd
from hvd_keras._backends import current


@pytest.mark.parametrize("name", ["mask_pad", "mean_with_weights", "sum_op"])
def test_training_equals_one_process(name: str) -> None:
    assert_equals_one_process(cases.LOSSES[name])


def test_rows_that_fill_a_batch_do_not_count_in_statistics() -> None:
    assert_equals_one_process(cases.MODELS["sync_batch_norm_pad"])


@pytest.fixture
def in_float64() -> Iterator[None]:
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")


@pytest.mark.parametrize(
    ("batch_size", "policy", "class_weight"),
    [(20, "split", None), (7, "split", {0: 0.3, 1: 1.7}), (20, "pad", {0: 2})],
)
def test_no_digit_of_float64_is_lost(
    batch_size: int, policy: str, class_weight: Any, in_float64: None
) -> None:
    generator = np.random.default_rng(1)
    x = generator.normal(size=(43, 4))
    y = (x.sum(1, keepdims=True) > 0).astype(float)

    def trained(is_shared: bool) -> list[Any]:
        keras.utils.set_random_seed(2)
        model = keras.Sequential(
            [keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)]
        )
        optimizer: Any = keras.optimizers.SGD(0.1)
        data: Any = {"x": x, "y": y, "batch_size": batch_size, "shuffle": False}
        if is_shared:
            optimizer = hvd.DistributedOptimizer(optimizer)
            share = hvd.shard(
                (x, y), global_batch_size=batch_size, policy=policy
            )
            data = {"x": share}
        model.compile(optimizer, "mse")
        model.fit(**data, epochs=2, class_weight=class_weight, verbose=0)
        return [np.asarray(each) for each in model.get_weights()]

    # On torch, Keras itself computes some of it in float32.
    is_wide = current().has_float64 and keras.backend.backend() != "torch"
    rtol = 1e-13 if is_wide else 1e-5
    for own, one in zip(trained(True), trained(False), strict=True):
        np.testing.assert_allclose(own, one, rtol=rtol, atol=1e-2 * rtol)
