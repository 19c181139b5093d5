"""An estimator of `pyspark.ml` for Keras models, and its transformer."""

from __future__ import annotations

import json
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.ml import Estimator, Model
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.param import Param, Params
from pyspark.sql import types
from pyspark.sql.functions import col

from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.spark._training import Task, train
from hvd_keras.spark.running import run
from hvd_keras.spark.store import Store

_ESTIMATOR = {
    "model": "a Keras model",
    "optimizer": "optimizer, if the model is not compiled",
    "loss": "loss, if the model is not compiled",
    "loss_weights": "weights of the losses, if the model is not compiled",
    "metrics": "metrics, if the model is not compiled",
    "batch_size": "rows in a batch of one rank",
    "val_batch_size": "the same in validation; None: batch_size",
    "epochs": "passes over the rows",
    "train_steps_per_epoch": "steps of an epoch; None: all rows",
    "validation_steps_per_epoch": "steps of a validation; None: all rows",
    "shuffle": "whether to draw the order of the rows",
    "feature_cols": "columns of the inputs",
    "label_cols": "columns of the labels",
    "sample_weight_col": "column of the weights of the rows",
    "validation": "share of the rows, or a column that is true for them",
    "store": "Store for rows and checkpoints",
    "run_id": "folder of this training in the store; None: a new one",
    "num_proc": "number of ranks; None: all slots",
    "backend_env": "environment variables for the ranks",
    "callbacks": "callbacks of Keras on each rank",
    "checkpoint_callback": "a ModelCheckpoint: its model is what fit returns",
    "gradient_compression": "the form in which gradients travel",
    "custom_objects": "classes of the model by name",
    "transformation_fn": "from arrays by column to such arrays, on each rank",
    "retries": "how often to start again after a failure",
    "random_seed": "seed of split, order and weights",
    "verbose": "that of fit, on rank 0",
}
_MODEL = {
    "model_bytes": "a file of Keras (.keras)",
    "history": "metrics by epoch, as JSON",
    "run_id": "folder of the training in the store",
    "feature_cols": "columns of the inputs",
    "output_cols": "columns for the outputs",
    "custom_objects": "classes of the model by name",
}


def with_params(names: dict[str, str]) -> Any:
    """Gives a class params of pyspark.ml, with getters and setters."""

    def decorate(cls: Any) -> Any:
        for name, doc in names.items():
            setattr(cls, name, Param(Params._dummy(), name, doc))
            suffix = name.title().replace("_", "")
            setattr(
                cls,
                f"get{suffix}",
                lambda self, name=name: self.getOrDefault(name),
            )
            setattr(
                cls,
                f"set{suffix}",
                lambda self, value, name=name: self._set_one(name, value),
            )
        return cls

    return decorate


class _HasParams(Params):
    def _set_one(self, name: str, value: Any) -> Any:
        return self._set_all({name: value})

    def _set_all(self, values: dict[str, Any]) -> Any:
        for name, value in values.items():
            # None too is a value, which `_set` would leave out.
            self._paramMap[self.getParam(name)] = value
        return self


@with_params(_ESTIMATOR)
class KerasEstimator(Estimator, _HasParams):
    """Trains a Keras model on the rows of a DataFrame, on tasks of Spark.

    `fit(df)` writes the columns as Parquet into `store`. Each rank reads them,
    so all rows must fit into the memory of a rank, and trains on its share. The
    params have getters and setters such as `setBatchSize`.

    Args:
        model: A Keras model, compiled or not.
        feature_cols: Columns of the inputs: numbers, arrays or vectors. One
            for each input of the model; a model with one input takes several
            side by side.
        label_cols: Columns of the labels.
        store: A `Store` or its address.
        optimizer: An optimizer, its name or its config.
        loss: A loss or its name.
        metrics: Metrics or their names.
        batch_size: Rows in a batch of one rank.
        epochs: Passes over the rows.
        validation: Share of the rows in (0, 1) that is kept for validation, or
            the name of a column that is true for these rows.
        **options: `num_proc`, `callbacks`, `custom_objects`,
            `transformation_fn`, `retries`, `random_seed`, `verbose`,
            `loss_weights`, `sample_weight_col`, `val_batch_size`,
            `train_steps_per_epoch`, `validation_steps_per_epoch`, `shuffle`,
            `run_id`, `backend_env`, `checkpoint_callback`,
            `gradient_compression`; docs/spark.md tells what they are.
    """

    def __init__(
        self,
        model: Any = None,
        feature_cols: Sequence[str] = (),
        label_cols: Sequence[str] = (),
        store: Store | str | None = None,
        *,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Any = None,
        batch_size: int = 32,
        epochs: int = 1,
        validation: float | str | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        unknown = set(options) - set(_ESTIMATOR)
        if unknown:
            raise InvalidArgumentError(
                "The arguments of `KerasEstimator` must be among "
                f"{', '.join(_ESTIMATOR)}. Received: {min(unknown)}."
            )
        defaults: dict[str, Any] = {
            **dict.fromkeys(_ESTIMATOR),
            "callbacks": [],
            "retries": 0,
            "random_seed": 0,
            "shuffle": True,
            "verbose": 2,
        }
        self._set_all(
            {
                **defaults,
                "model": model,
                "feature_cols": list(feature_cols),
                "label_cols": list(label_cols),
                "store": store,
                "optimizer": optimizer,
                "loss": loss,
                "metrics": metrics,
                "batch_size": batch_size,
                "epochs": epochs,
                "validation": validation,
                **options,
            }
        )

    def _fit(self, dataset: Any) -> KerasModel:
        self._check()
        run_id = self._run_id()
        rows = self._write(dataset, self._store().run_folder(run_id))
        return self._train(run_id, *rows, dataset.sparkSession)

    def _store(self) -> Store:
        store = self.getOrDefault("store")
        return Store(store) if isinstance(store, str) else store

    def _run_id(self) -> str:
        return self.getOrDefault("run_id") or f"run-{uuid.uuid4().hex[:12]}"

    def _train(
        self, run_id: str, rows: str, validation_rows: str | None, session: Any
    ) -> KerasModel:
        """Trains on rows in the store."""
        get = self.getOrDefault
        store = self._store()
        local = Store.local_path(store.run_folder(run_id))
        task = Task(
            store=store,
            model=self._model_bytes(store, run_id),
            rows=rows,
            validation_rows=validation_rows,
            feature_cols=get("feature_cols"),
            label_cols=get("label_cols"),
            sample_weight_col=get("sample_weight_col"),
            batch_size=get("batch_size"),
            val_batch_size=get("val_batch_size") or get("batch_size"),
            epochs=get("epochs"),
            steps=(
                get("train_steps_per_epoch"),
                get("validation_steps_per_epoch"),
            ),
            shuffle=get("shuffle"),
            compression=get("gradient_compression"),
            seed=get("random_seed"),
            verbose=get("verbose"),
            callbacks=get("callbacks") or [],
            checkpoint_callback=get("checkpoint_callback"),
            custom_objects=get("custom_objects"),
            transformation_fn=get("transformation_fn"),
            backup=f"{local}/backup" if local else None,
        )
        model, history = self._run(task, session)[0]
        store.write(store.checkpoint(run_id), model)
        return self._make_model(
            model_bytes=model,
            history=history,
            run_id=run_id,
            feature_cols=get("feature_cols"),
            output_cols=[f"{name}__output" for name in get("label_cols")],
            custom_objects=get("custom_objects"),
        )

    def _make_model(self, **params: Any) -> KerasModel:
        return KerasModel(**params)

    def _run(self, task: Task, session: Any) -> list[Any]:
        return run(
            train,
            (task,),
            num_proc=self.getOrDefault("num_proc"),
            retries=self.getOrDefault("retries"),
            env=self.getOrDefault("backend_env"),
            session=session,
        )

    def _check(self) -> None:
        for name in ("model", "store", "feature_cols", "label_cols"):
            value = self.getOrDefault(name)
            if value is None or value == []:
                raise InvalidArgumentError(
                    f"`{name}` must be set before `fit`. Received: {value!r}."
                )
        share = self.getOrDefault("validation")
        if isinstance(share, (int, float)) and not 0 < share < 1:
            raise InvalidArgumentError(
                "`validation` must be a share in (0, 1) or a column. "
                f"Received: {share!r}."
            )

    def _model_bytes(self, store: Store, run_id: str) -> bytes:
        get = self.getOrDefault
        if get("run_id") and store.exists(store.checkpoint(run_id)):
            return store.read(store.checkpoint(run_id))  # goes on
        model = get("model")
        if get("optimizer") is not None or get("loss") is not None:
            model.compile(
                get("optimizer"),
                get("loss"),
                loss_weights=get("loss_weights"),
                metrics=get("metrics"),
            )
        if not model.compiled:
            raise InvalidArgumentError(
                "`model` must be compiled, or `optimizer` and `loss` be given. "
                "Received: none of them."
            )
        return file_of(model)

    def _write(self, dataset: Any, place: str) -> tuple[str, str | None]:
        names = [
            *self.getOrDefault("feature_cols"),
            *self.getOrDefault("label_cols"),
        ]
        if self.getOrDefault("sample_weight_col"):
            names.append(self.getOrDefault("sample_weight_col"))
        store = self._store()
        share = self.getOrDefault("validation")
        training, validation = dataset, None
        if isinstance(share, str):
            training = dataset.where(~col(share).cast("boolean"))
            validation = dataset.where(col(share).cast("boolean"))
        elif share is not None:
            seed = self.getOrDefault("random_seed")
            training, validation = dataset.randomSplit(
                [1.0 - share, float(share)], seed=seed
            )
        rows = Store.join(place, "rows")
        store.write_rows(_plain(training, names), rows)
        if validation is None:
            return rows, None
        others = Store.join(place, "validation_rows")
        store.write_rows(_plain(validation, names), others)
        return rows, others


@with_params(_MODEL)
class KerasModel(Model, _HasParams):
    """A trained Keras model that adds its predictions to DataFrames.

    For each label an array column `<label>__output` is added, or a column of
    numbers if the model gives one number a row.
    """

    def __init__(
        self,
        model_bytes: bytes = b"",
        history: str = "{}",
        feature_cols: Sequence[str] = (),
        output_cols: Sequence[str] = (),
        custom_objects: dict[str, Any] | None = None,
        run_id: str = "",
    ) -> None:
        super().__init__()
        self._set_all(
            {
                "model_bytes": model_bytes,
                "history": history,
                "feature_cols": list(feature_cols),
                "output_cols": list(output_cols),
                "custom_objects": custom_objects,
                "run_id": run_id,
            }
        )

    def keras(self) -> Any:
        """Returns the Keras model, to save it or to use it here."""
        return _load(
            self.getOrDefault("model_bytes"),
            self.getOrDefault("custom_objects"),
        )

    def metrics(self) -> dict[str, list[float]]:
        """Returns the metrics of each epoch, by name."""
        found: dict[str, list[float]] = json.loads(self.getOrDefault("history"))
        return found

    def _transform(self, dataset: Any) -> Any:
        get = self.getOrDefault
        features, outputs = get("feature_cols"), get("output_cols")
        inputs = [f"{name}__input" for name in features]
        widened = dataset
        for name, copy in zip(features, inputs, strict=True):
            widened = widened.withColumn(copy, _plain_column(dataset, name))
        shapes = [tuple(one.shape[1:]) for one in self.keras().outputs]
        schema = types.StructType(list(dataset.schema.fields))
        for name, shape in zip(outputs, shapes, strict=True):
            number = types.FloatType()
            is_number = shape in ((), (1,))
            schema.add(name, number if is_number else types.ArrayType(number))
        predict = _predictor(
            get("model_bytes"), get("custom_objects"), inputs, outputs
        )
        return widened.mapInArrow(predict, schema)


def _plain(dataset: Any, names: Sequence[str]) -> Any:
    return dataset.select(*(_plain_column(dataset, n) for n in names))


def _plain_column(dataset: Any, name: str) -> Any:
    if isinstance(dataset.schema[name].dataType, VectorUDT):
        return vector_to_array(col(name), "float32").alias(name)
    return col(name)


def file_of(model: Any) -> bytes:
    """Returns what a file of a Keras model has."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        model.save(path)
        return path.read_bytes()


def _load(model: bytes, custom_objects: dict[str, Any] | None) -> Any:
    import keras

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.keras"
        path.write_bytes(model)
        return keras.models.load_model(path, custom_objects, compile=False)


def _predictor(
    model_bytes: bytes,
    custom_objects: dict[str, Any] | None,
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> Any:
    def predict(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        from hvd_keras.spark import _columns

        model = _load(model_bytes, custom_objects)
        for batch in batches:
            if batch.num_rows == 0:
                continue
            arrays = _columns.to_arrays(batch, inputs)
            found = model.predict_on_batch(
                _columns.features(arrays, inputs, model)
            )
            found = found if isinstance(found, (list, tuple)) else [found]
            kept = batch.drop_columns(list(inputs))
            for name, values in zip(outputs, found, strict=True):
                rows = values.reshape(len(values), -1).astype("float32")
                is_number = values.ndim == 1 or values.shape[1:] == (1,)
                column = rows[:, 0] if is_number else list(rows)
                kept = kept.append_column(name, pa.array(column))
            yield kept

    return predict
