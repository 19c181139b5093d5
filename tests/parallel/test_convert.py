"""Batch normalization is converted in a model that has trained."""

from __future__ import annotations

import keras
import keras_training as kt
import numpy as np
import pytest

import hvd_keras as hvd


def model_with_blocks() -> keras.Model:
    block = keras.Sequential(
        [keras.layers.Dense(4), keras.layers.BatchNormalization()]
    )
    inputs = keras.Input((kt.NUM_FEATURES,))
    hidden = block(keras.layers.BatchNormalization(momentum=0.7)(inputs))
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


@pytest.mark.thorough(1, 4)
def test_a_model_that_has_trained_goes_on_as_one_process() -> None:
    x, y = kt.regression_data(2 * kt.BATCH)
    x += np.arange(kt.NUM_FEATURES, dtype=np.float32)
    one = kt.build(model_with_blocks)
    model = kt.build(model_with_blocks)
    model.compile(hvd.DistributedOptimizer("sgd"), "mse")
    data = kt.shares(x, y)
    model.fit(data, verbose=0)  # traced, with statistics of its own
    model.set_weights(one.get_weights())
    assert hvd.convert_sync_batch_normalization(model) is model

    one.compile("sgd", "mse")
    one.fit(x, y, kt.BATCH, verbose=0, shuffle=False)
    model.fit(data, verbose=0)
    kt.assert_equal_on_all_ranks(model.get_weights())
    kt.assert_close(model.get_weights(), one.get_weights(), 1e-5)
    assert model.layers[1].momentum == 0.7
