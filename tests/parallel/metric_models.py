"""A model with all kinds of metrics, and data for it."""

from __future__ import annotations

import keras
import keras_training as kt
import numpy as np

NUM_ROWS = 120


def classification_data() -> tuple[np.ndarray, np.ndarray]:
    x, _ = kt.regression_data(NUM_ROWS)
    y = (x[:, 0] + 0.3 * x[:, 1] > 0.2).astype(np.float32)
    # The order by label makes the ranks' shares differ in kind.
    order = np.argsort(y, kind="stable")
    return x[order], y[order, None]


def classifier() -> keras.Model:
    inputs = keras.Input((kt.NUM_FEATURES,))
    outputs = keras.layers.Dense(1, activation="sigmoid")(inputs)
    return keras.Model(inputs, outputs)


def metrics() -> list:
    return [
        keras.metrics.Recall(name="recall"),
        keras.metrics.Precision(name="precision"),
        keras.metrics.AUC(name="auc"),
        keras.metrics.F1Score(name="f1", threshold=0.5),
        keras.metrics.R2Score(name="r2"),
        keras.metrics.RootMeanSquaredError(name="rmse"),
    ]


def compiled(learning_rate: float = 0.0) -> keras.Model:
    model = kt.build(classifier)
    model.compile(
        keras.optimizers.SGD(learning_rate),
        "binary_crossentropy",
        metrics=metrics(),
    )
    return model


def assert_logs_close(logs: dict, expected: dict) -> None:
    assert set(logs) == set(expected)
    for key, value in expected.items():
        np.testing.assert_allclose(logs[key], value, rtol=2e-5, err_msg=key)
