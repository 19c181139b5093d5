"""What each rank of an estimator does."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hvd_keras.spark import _columns
from hvd_keras.spark.store import Store


@dataclasses.dataclass(frozen=True)
class Task:
    """A training, as the driver describes it."""

    model: bytes  # a file of Keras, with optimizer and loss
    rows: str  # address of the rows
    validation_rows: str | None
    feature_cols: Sequence[str]
    label_cols: Sequence[str]
    batch_size: int  # of one rank
    epochs: int
    seed: int
    verbose: int
    callbacks: Sequence[Any]
    custom_objects: dict[str, Any] | None
    transformation_fn: Callable[[dict[str, Any]], dict[str, Any]] | None
    backup: str | None  # a folder


def train(task: Task) -> tuple[bytes, str]:
    """Trains on this rank; returns model and history, on rank 0 alone."""
    import keras

    import hvd_keras as hvd

    hvd.init()
    keras.utils.set_random_seed(task.seed)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        path.write_bytes(task.model)
        model = hvd.load_model(str(path), custom_objects=task.custom_objects)
        data = _read(task, task.rows, model)
        validation = None
        if task.validation_rows is not None:
            rows = _read(task, task.validation_rows, model)
            validation = hvd.shard(rows, batch_size=task.batch_size)
        history = model.fit(
            hvd.shard(
                data, batch_size=task.batch_size, shuffle=True, seed=task.seed
            ),
            validation_data=validation,
            epochs=task.epochs,
            callbacks=_callbacks(task),
            verbose=task.verbose if hvd.rank() == 0 else 0,
        ).history
        if hvd.rank() != 0:
            return b"", ""
        model.save(path)
        numbers = {k: [float(v) for v in vs] for k, vs in history.items()}
        return path.read_bytes(), json.dumps(numbers)


def _callbacks(task: Task) -> list[Any]:
    import hvd_keras as hvd

    backup = []
    if task.backup is not None:
        backup = [hvd.callbacks.BackupAndRestore(task.backup)]
    return [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        *backup,
        hvd.callbacks.MetricAverageCallback(),
        *task.callbacks,
    ]


def _read(task: Task, address: str, model: Any) -> tuple[Any, Any]:
    names = [*task.feature_cols, *task.label_cols]
    table = Store.dataset(address).to_table(columns=names)
    arrays = _columns.to_arrays(table, names)
    if task.transformation_fn is not None:
        arrays = task.transformation_fn(arrays)
    return (
        _columns.features(arrays, task.feature_cols, model),
        _columns.labels(arrays, task.label_cols),
    )
