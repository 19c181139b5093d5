"""Keras's own callbacks work with ours, in both orders, on all ranks."""

from __future__ import annotations

import functools
import pathlib
import tempfile
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest

import hvd_keras as hvd


def classification(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    x, _ = kt.regression_data(num_rows)
    return x, (x[:, :1] > 0.1).astype(np.int32)


class Share(keras.utils.PyDataset):
    """Gives this rank's part of each batch."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        super().__init__()
        self._x, self._y = x, y

    def __len__(self) -> int:
        return len(self._x) // kt.BATCH

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        rows = np.arange(kt.BATCH * index, kt.BATCH * (index + 1))
        own = np.array_split(rows, hvd.size())[hvd.rank()]
        return self._x[own], self._y[own]


def share_of(kind: str, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Returns the arguments of `fit` that give a rank its share."""
    if kind == "dataset":
        return {"x": kt.shares(x, y).repeat(), "steps_per_epoch": 8}
    if kind == "pydataset":
        return {"x": Share(x, y)}
    batches = [Share(x, y)[index] for index in range(len(x) // kt.BATCH)]
    return {
        "x": np.concatenate([rows for rows, _ in batches]),
        "y": np.concatenate([labels for _, labels in batches]),
        "batch_size": kt.BATCH // hvd.size(),
    }


def classifier() -> keras.Model:
    inputs = keras.Input((kt.NUM_FEATURES,))
    outputs = keras.layers.Dense(1, activation="sigmoid")(inputs)
    return keras.Model(inputs, outputs)


def compiled(is_distributed: bool) -> keras.Model:
    model = kt.build(classifier)
    optimizer = keras.optimizers.SGD(0.5, momentum=0.5)
    if is_distributed:
        optimizer = hvd.DistributedOptimizer(optimizer)
    model.compile(
        optimizer,
        "binary_crossentropy",
        metrics=[keras.metrics.AUC(name="auc", num_thresholds=50)],
    )
    return model


def public_callbacks(directory: Any, seen: list) -> list[Any]:
    made: list[Any] = [
        keras.callbacks.EarlyStopping(
            "val_loss", patience=2, min_delta=0.05, restore_best_weights=True
        ),
        keras.callbacks.ReduceLROnPlateau(
            "val_loss", factor=0.5, patience=1, min_delta=0.05
        ),
        keras.callbacks.CSVLogger(directory / "log.csv"),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: seen.append(dict(logs))
        ),
    ]
    made.append(keras.callbacks.TensorBoard(directory / "board"))
    return made


ARGUMENTS: dict[str, Any] = {
    "epochs": 12,
    "initial_epoch": 2,
    "class_weight": {0: 1.0, 1: 2.0},
    "shuffle": False,
    "verbose": 0,
}


@functools.cache
def alone() -> tuple[keras.Model, keras.callbacks.History]:
    """Trains in one process."""
    model = compiled(is_distributed=False)
    with tempfile.TemporaryDirectory() as directory:
        history = model.fit(
            kt.whole_batches(*classification(kt.BATCH * kt.NUM_BATCHES)),
            validation_data=classification(40),
            callbacks=public_callbacks(pathlib.Path(directory), []),
            **ARGUMENTS,
        )
    return model, history


@pytest.mark.thorough(1, 4)
@pytest.mark.parametrize(
    ("kind", "is_first"),
    [
        pytest.param("numpy", True, marks=pytest.mark.thorough),
        ("dataset", False),
        pytest.param("pydataset", True, marks=pytest.mark.thorough),
    ],
)
def test_callbacks_act_as_on_one_process(
    kind: str, is_first: bool, tmp_path: Any
) -> None:
    wanted, expected = alone()
    num_epochs = len(expected.epoch)
    assert 3 <= num_epochs < 10  # EarlyStopping ended it
    assert expected.history["learning_rate"][-1] < 0.5  # and the rate fell

    x, y = classification(40)
    rows = kt.uneven_share(len(x))
    model, seen = compiled(is_distributed=True), []
    ours = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(),
        hvd.callbacks.MetricAverageCallback(),
    ]
    theirs = public_callbacks(tmp_path, seen)
    history = model.fit(
        **share_of(kind, *classification(kt.BATCH * kt.NUM_BATCHES)),
        validation_data=(x[rows], y[rows]),
        callbacks=[*ours, *theirs] if is_first else [*theirs, *ours],
        **ARGUMENTS,
    )
    assert history.epoch == expected.epoch
    for key, values in expected.history.items():
        np.testing.assert_allclose(
            history.history[key], values, rtol=1e-4, err_msg=key
        )
    for epoch, logs in enumerate(seen):
        for key in ("loss", "val_auc"):
            assert logs[key] == history.history[key][epoch]
    # The best weights are restored, and each rank's file has all lines.
    kt.assert_equal_on_all_ranks(model.get_weights())
    kt.assert_close(model.get_weights(), wanted.get_weights(), 1e-4)
    files = hvd.allgather_object((tmp_path / "log.csv").read_text())
    assert len(set(files)) == 1
    assert len(files[0].splitlines()) == num_epochs + 1
    assert list((tmp_path / "board").rglob("events.*"))
    values = model.evaluate(
        x[rows], y[rows], verbose=0, callbacks=[*theirs[3:5], *ours]
    )
    assert values == pytest.approx(wanted.evaluate(x, y, verbose=0), rel=1e-4)
