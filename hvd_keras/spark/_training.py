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

    store: Store
    model: bytes  # a file of Keras, with optimizer and loss
    rows: str  # address of the rows
    validation_rows: str | None
    feature_cols: Sequence[str]
    label_cols: Sequence[str]
    sample_weight_col: str | None
    batch_size: int  # of one rank
    val_batch_size: int
    epochs: int
    steps: tuple[int | None, int | None]  # of an epoch, and of a validation
    shuffle: bool
    compression: Any
    seed: int
    verbose: int
    callbacks: Sequence[Any]
    checkpoint_callback: Any
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
        model = hvd.load_model(
            str(path),
            custom_objects=task.custom_objects,
            compression=task.compression or hvd.Compression.none,
        )
        data = _read(task, task.rows, model)
        validation = None
        if task.validation_rows is not None:
            rows = _read(task, task.validation_rows, model)
            validation = hvd.shard(rows, batch_size=task.val_batch_size)
        best = Path(folder) / "best.keras"
        history = model.fit(
            hvd.shard(
                data,
                batch_size=task.batch_size,
                shuffle=task.shuffle,
                seed=task.seed,
            ),
            validation_data=validation,
            epochs=task.epochs,
            steps_per_epoch=task.steps[0],
            validation_steps=task.steps[1],
            callbacks=_callbacks(task, best),
            verbose=task.verbose if hvd.rank() == 0 else 0,
        ).history
        if hvd.rank() != 0:
            return b"", ""
        if best.exists():
            path = best
        else:
            model.save(path)
        numbers = {k: [float(v) for v in vs] for k, vs in history.items()}
        return path.read_bytes(), json.dumps(numbers)


def _callbacks(task: Task, best: Path) -> list[Any]:
    import hvd_keras as hvd

    backup, last = [], []
    if task.backup is not None:
        backup = [hvd.callbacks.BackupAndRestore(task.backup)]
    if task.checkpoint_callback is not None:  # ours waits for all ranks
        task.checkpoint_callback.filepath = str(best)
        last = [task.checkpoint_callback]
    return [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        *backup,
        hvd.callbacks.MetricAverageCallback(),
        *task.callbacks,
        *last,
    ]


def _read(task: Task, address: str, model: Any) -> tuple[Any, ...]:
    weights = [task.sample_weight_col] if task.sample_weight_col else []
    names = [*task.feature_cols, *task.label_cols, *weights]
    table = task.store.rows(address).to_table(columns=names)
    arrays = _columns.to_arrays(table, names)
    if task.transformation_fn is not None:
        arrays = task.transformation_fn(arrays)
    return (
        _columns.features(arrays, task.feature_cols, model),
        _columns.labels(arrays, task.label_cols),
        *(arrays[name] for name in weights),
    )
