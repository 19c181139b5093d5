"""Each Keras metric over uneven shards equals that of one process."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest

from hvd_keras.callbacks import MetricAverageCallback

pytestmark = pytest.mark.thorough(1, 4)

NUM_ROWS = 60
NUM_CLASSES = 4
# Some metrics need these arguments.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "IoU": {"num_classes": 2, "target_class_ids": [0, 1]},
    "MeanIoU": {"num_classes": 2},
    "OneHotIoU": {"num_classes": NUM_CLASSES, "target_class_ids": [0, 2]},
    "OneHotMeanIoU": {"num_classes": NUM_CLASSES},
    "MeanRelativeError": {"normalizer": [1.0, 2.0, 3.0, 4.0]},
    "PrecisionAtRecall": {"recall": 0.5},
    "RecallAtPrecision": {"precision": 0.5},
    "SensitivityAtSpecificity": {"specificity": 0.5},
    "SpecificityAtSensitivity": {"sensitivity": 0.5},
    "TopKCategoricalAccuracy": {"k": 2},
    "SparseTopKCategoricalAccuracy": {"k": 2},
}
# These do not take labels and predictions.
OTHERS = {"Metric", "MeanMetricWrapper", "Mean", "Sum"}


def every_metric(is_sparse: bool) -> list[keras.metrics.Metric]:
    classes = {
        cls.__name__: cls
        for _, cls in inspect.getmembers(keras.metrics, inspect.isclass)
        if issubclass(cls, keras.metrics.Metric)
    }
    return [
        cls(**ARGUMENTS.get(name, {}), name=name)
        for name, cls in classes.items()
        if name not in OTHERS and name.startswith("Sparse") == is_sparse
    ]


@pytest.mark.ranks(1, 2)
@pytest.mark.parametrize("is_sparse", [False, True])
def test_every_metric_is_over_all_samples(is_sparse: bool) -> None:
    generator = np.random.default_rng(3)
    x = generator.normal(size=(NUM_ROWS, kt.NUM_FEATURES)).astype(np.float32)
    # The order makes the ranks' shares differ in kind.
    labels = np.sort(generator.integers(0, NUM_CLASSES, NUM_ROWS))
    y = labels if is_sparse else np.eye(NUM_CLASSES, dtype=np.float32)[labels]
    loss = "sparse_" * is_sparse + "categorical_crossentropy"

    def model() -> keras.Model:
        inputs = keras.Input((kt.NUM_FEATURES,))
        outputs = keras.layers.Dense(NUM_CLASSES, activation="softmax")(inputs)
        return keras.Model(inputs, outputs)

    whole = kt.build(model)
    whole.compile(loss=loss, metrics=every_metric(is_sparse), run_eagerly=True)
    expected = whole.evaluate(x, y, verbose=0, return_dict=True)
    rows = kt.uneven_share(NUM_ROWS)
    logs = whole.evaluate(
        x[rows],
        y[rows],
        batch_size=8,
        verbose=0,
        return_dict=True,
        callbacks=[MetricAverageCallback()],
    )
    assert len(logs) > (3 if is_sparse else 30)
    for name, value in expected.items():
        np.testing.assert_allclose(
            logs[name], value, rtol=2e-5, atol=1e-6, err_msg=name
        )
    kt.assert_equal_on_all_ranks([np.asarray(value) for value in logs.values()])
