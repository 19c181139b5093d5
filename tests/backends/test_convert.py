"""Batch normalization is converted in place, with its weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import small_training as small

import hvd_keras as hvd

BatchNormalization = keras.layers.BatchNormalization


def block() -> keras.Model:
    return keras.Sequential([keras.layers.Dense(4), BatchNormalization()])


def functional() -> keras.Model:
    inputs = keras.Input((small.NUM_FEATURES,))
    hidden = block()(BatchNormalization(momentum=0.7, name="first")(inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


def sequential() -> keras.Model:
    return keras.Sequential(
        [keras.Input((small.NUM_FEATURES,)), block(), keras.layers.Dense(1)]
    )


class Subclassed(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = {"a": [BatchNormalization()], "b": (block(),)}
        self.head = keras.layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.blocks["a"][0](x, training=training)
        return self.head(self.blocks["b"][0](x, training=training))


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(functional, marks=pytest.mark.thorough),
        pytest.param(sequential, marks=pytest.mark.thorough),
        Subclassed,
    ],
)
def test_a_converted_model_trains_as_one_process(
    make: Callable[[], keras.Model],
) -> None:
    x, y = small.data(2 * small.BATCH)
    x += np.arange(x.shape[1], dtype=np.float32)

    def made() -> keras.Model:
        keras.utils.set_random_seed(3)
        model = make()
        model(x)  # a subclass gets its weights
        model.set_weights([w + 0.1 for w in model.get_weights()])
        return model

    one = made()
    one.compile("sgd", "mse")
    one.fit(x, y, small.BATCH, verbose=0, shuffle=False)
    model = made()
    model.compile(hvd.DistributedOptimizer("sgd"), "mse")
    model.train_on_batch(x[:2], y[:2])  # traced, with statistics of its own
    model.set_weights(made().get_weights())
    assert hvd.convert_sync_batch_normalization(model) is model
    model.fit(small.shares(x, y), verbose=0, shuffle=False)
    weights = small.on_all_ranks(model.get_weights())
    for mine, other in zip(weights, one.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


def test_arguments_stay() -> None:
    model = hvd.convert_sync_batch_normalization(functional())
    layer = model.get_layer("first")
    assert type(layer) is hvd.SyncBatchNormalization
    assert layer.momentum == 0.7
    assert layer.process_set is hvd.global_process_set
    copy = keras.models.clone_model(model)
    assert type(copy.get_layer("first")) is hvd.SyncBatchNormalization


def test_a_class_of_its_own_is_refused() -> None:
    class Mine(BatchNormalization):
        pass

    model = keras.Sequential([BatchNormalization(), Mine(name="special")])
    with pytest.raises(hvd.InvalidArgumentError, match="'special' of class Mi"):
        hvd.convert_sync_batch_normalization(model)
    assert type(model.layers[0]) is BatchNormalization
    with pytest.raises(TypeError, match="process_set"):
        hvd.convert_sync_batch_normalization(model, [0])
