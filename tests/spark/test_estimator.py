"""A Keras model is trained on a DataFrame, and predicts for one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import keras
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import fs, parquet
from pyspark.ml import Pipeline
from pyspark.ml.feature import VectorAssembler
from sklearn.datasets import load_digits

import hvd_keras as hvd
from hvd_keras.spark import KerasEstimator, Store


@pytest.fixture(scope="module")
def digits(spark: Any) -> Any:
    data = load_digits()
    rows = [
        ((image.ravel() / 16.0).tolist(), int(label), number % 5 == 0)
        for number, (image, label) in enumerate(
            zip(data.images, data.target, strict=True)
        )
    ]
    schema = "pixels array<float>, digit long, is_test boolean"
    return spark.createDataFrame(rows, schema).repartition(3)


def _model() -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def _estimator(folder: Path | str, **options: Any) -> KerasEstimator:
    return KerasEstimator(
        _model(),
        ["pixels"],
        ["digit"],
        Store.create(str(folder)),
        optimizer=keras.optimizers.Adam(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        num_proc=2,
        verbose=0,
        **options,
    )


def test_an_estimator_learns_and_its_model_predicts(
    digits: Any, tmp_path: Path
) -> None:
    estimator = _estimator(tmp_path, validation="is_test", epochs=25)
    assert estimator.setBatchSize(16).getBatchSize() == 16
    model = estimator.fit(digits)
    assert len(model.metrics()["val_accuracy"]) == 25
    assert model.metrics()["val_accuracy"][-1] >= 0.97
    rows = model.transform(digits.where("is_test")).collect()
    assert len(rows[0].digit__output) == 10
    right = [np.argmax(row.digit__output) == row.digit for row in rows]
    assert np.mean(right) >= 0.97
    assert model.keras().count_params() == _model().count_params()


def test_rows_travel_through_s3(digits: Any, s3: Callable[[str], str]) -> None:
    estimator = _estimator(s3("digits"), validation="is_test", epochs=8)
    model = estimator.fit(digits)
    assert model.metrics()["val_accuracy"][-1] >= 0.9
    system, folder = fs.FileSystem.from_uri(s3("digits"))
    found = system.get_file_info(fs.FileSelector(folder, recursive=True))
    # Spark has three parts of the rows, each with rows for the test.
    assert sum(one.path.endswith(".parquet") for one in found) == 6
    (run,) = system.get_file_info(fs.FileSelector(folder))
    for name, num_rows in (("rows", 1437), ("validation_rows", 360)):
        rows = Store(s3("")).rows(s3(f"digits/{run.base_name}/{name}"))
        assert rows.count_rows() == num_rows


def test_fsspec_serves_what_pyarrow_does_not_know() -> None:
    table = pa.table({"x": [1, 2, 3]})
    memory = fsspec.filesystem("memory")
    memory.makedirs("/rows")
    with memory.open("/rows/part.parquet", "wb") as file:
        parquet.write_table(table, file)
    assert Store("memory://").rows("memory://rows").to_table() == table


def test_it_takes_vectors_and_stands_in_a_pipeline(
    spark: Any, tmp_path: Path
) -> None:
    rows = [(float(n), float(-n), 3.0 * n) for n in range(8)] * 4
    frame = spark.createDataFrame(rows, ["a", "b", "y"])
    assembler = VectorAssembler(inputCols=["a", "b"], outputCol="both")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    estimator = KerasEstimator(
        model,
        ["both"],
        ["y"],
        f"file://{tmp_path}",
        num_proc=2,
        verbose=0,
        transformation_fn=_halve,
        validation=0.25,
    )
    fitted = Pipeline(stages=[assembler, estimator]).fit(frame)
    (row, *_) = fitted.transform(frame).collect()
    assert isinstance(row.y__output, float)


def _halve(arrays: dict[str, Any]) -> dict[str, Any]:
    return {**arrays, "y": arrays["y"] / 2}


def test_wrong_params_are_refused(digits: Any, tmp_path: Path) -> None:
    with pytest.raises(hvd.InvalidArgumentError, match="batchsize"):
        KerasEstimator(_model(), batchsize=3)
    with pytest.raises(hvd.InvalidArgumentError, match="`store` must be set"):
        KerasEstimator(_model(), ["pixels"], ["digit"]).fit(digits)
    with pytest.raises(hvd.InvalidArgumentError, match="`validation`"):
        _estimator(tmp_path, validation=1.5).fit(digits)
    with pytest.raises(hvd.InvalidArgumentError, match="compiled"):
        KerasEstimator(_model(), ["pixels"], ["digit"], str(tmp_path)).fit(
            digits
        )


def test_options_of_a_training_count(spark: Any, tmp_path: Path) -> None:
    # Rows with a weight of 0 say the opposite.
    rows = [(float(n % 5), 2.0 * (n % 5), 1.0) for n in range(40)]
    rows += [(x, -y, 0.0) for x, y, _ in rows]
    frame = spark.createDataFrame(rows, ["x", "y", "weight"])
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    estimator = KerasEstimator(
        model,
        ["x"],
        ["y"],
        Store(str(tmp_path)),
        optimizer=keras.optimizers.SGD(0.05),
        loss="mse",
        loss_weights=[2.0],
        sample_weight_col="weight",
        train_steps_per_epoch=3,
        val_batch_size=4,
        validation=0.25,
        shuffle=False,
        gradient_compression=hvd.Compression.fp16,
        backend_env={"TF_DETERMINISTIC_OPS": "1"},
        checkpoint_callback=hvd.callbacks.BestModelCheckpoint("loss"),
        run_id="ours",
        batch_size=8,
        epochs=12,
        num_proc=2,
        verbose=0,
    )
    fitted = estimator.fit(frame)
    losses = fitted.metrics()["loss"]
    assert losses[-1] < 0.1 * losses[0]
    slope = fitted.keras().get_weights()[0].item()
    assert abs(slope - 2.0) < 0.5
    kept = tmp_path / "ours" / "checkpoint.keras"
    assert kept.read_bytes() == fitted.getModelBytes()
    keras_best = keras.callbacks.ModelCheckpoint("later.keras", "loss")
    estimator.setCheckpointCallback(keras_best)
    again = estimator.setEpochs(1).fit(frame)  # from where it was
    assert again.metrics()["loss"][0] < 0.1 * losses[0]
