"""`horovod.spark.keras` on `hvd_keras.spark`: estimator and transformer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.ml.functions import array_to_vector
from pyspark.sql import types
from pyspark.sql.functions import col

from hvd_keras._common.ignored import ignoring
from hvd_keras.compat.spark_store import Store
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.spark import _barrier, estimator
from hvd_keras.spark._training import Task, train

__all__ = ["KerasEstimator", "KerasModel"]

# Each rank reads all rows into its memory, and draws their order among all.
_OF_READERS = (
    "shuffle_buffer_size partitions_per_process train_reader_num_workers "
    "val_reader_num_workers reader_pool_type data_module mp_start_method "
    "inmemory_cache_all compress_sparse_cols transformation_edit_fields "
    "transformation_removed_fields label_shapes use_gpu"
)


@estimator.with_params({"backend": "what runs the ranks; None: Spark"})
class KerasEstimator(estimator.KerasEstimator):
    """`hvd_keras.spark.KerasEstimator`, with Horovod's arguments.

    Args:
        backend: A `Backend`, in place of `num_proc`.
        transformation_fn: Gets a DataFrame of pandas with rows on a rank, and
            returns one.
        **params: The others.
    """

    @ignoring("horovod.spark.keras.KerasEstimator", _OF_READERS)
    def __init__(
        self,
        *,
        backend: Any = None,
        transformation_fn: Callable[[Any], Any] | None = None,
        **params: Any,
    ) -> None:
        if backend is not None and params.get("num_proc") is not None:
            raise InvalidArgumentError(
                "`backend` and `num_proc` exclude each other. Received: "
                f"num_proc={params['num_proc']}."
            )
        if transformation_fn is not None:
            transformation_fn = _OfFrames(transformation_fn)
        super().__init__(transformation_fn=transformation_fn, **params)
        self._set_all({"backend": backend})

    def fit_on_parquet(
        self, params: Mapping[Any, Any] | None = None, dataset_idx: Any = None
    ) -> KerasModel:
        """Trains on rows that are in the store already.

        Args:
            params: Params that differ for this training.
            dataset_idx: The number of the rows; see
                `Store.get_train_data_path`.
        """
        if params:
            return self.copy(params).fit_on_parquet(dataset_idx=dataset_idx)
        self._check()
        store = self._store()
        rows = store.get_train_data_path(dataset_idx)
        others: str | None = store.get_val_data_path(dataset_idx)
        if self.getOrDefault("validation") is None:
            others = None
        session = _barrier.active_session()
        return self._train(self._run_id(), rows, others, session)

    def _store(self) -> Store:
        store = self.getOrDefault("store")
        return Store.create(store) if isinstance(store, str) else store

    def _make_model(self, **params: Any) -> KerasModel:
        return KerasModel(**params)

    def _run(self, task: Task, session: Any) -> list[Any]:
        backend = self.getOrDefault("backend")
        if backend is None:
            return super()._run(task, session)
        env = self.getOrDefault("backend_env")
        return list(backend.run(train, args=(task,), env=env))


class KerasModel(estimator.KerasModel):
    """`hvd_keras.spark.KerasModel`: several numbers a row are a vector."""

    def __init__(
        self,
        model: Any = None,
        feature_columns: Sequence[str] | None = None,
        label_columns: Sequence[str] | None = None,
        **params: Any,
    ) -> None:
        """Makes a transformer of a model that was trained.

        Args:
            model: A Keras model.
            feature_columns: Columns of the inputs.
            label_columns: Columns of the labels.
            **params: Those of `hvd_keras.spark.KerasModel`.
        """
        if model is not None:
            params["model_bytes"] = estimator.file_of(model)
        if feature_columns is not None:
            params["feature_cols"] = feature_columns
        if label_columns is not None:
            outputs = [f"{name}__output" for name in label_columns]
            params["output_cols"] = outputs
        super().__init__(**params)

    def getModel(self) -> Any:  # noqa: N802
        """Returns the Keras model."""
        return self.keras()

    def getHistory(self) -> dict[str, list[float]]:  # noqa: N802
        """Returns the metrics of each epoch, by name."""
        return self.metrics()

    def _transform(self, dataset: Any) -> Any:
        found = super()._transform(dataset)
        for name in self.getOrDefault("output_cols"):
            if isinstance(found.schema[name].dataType, types.ArrayType):
                found = found.withColumn(name, array_to_vector(col(name)))
        return found


class _OfFrames:
    """Makes of a function of DataFrames one of arrays by column."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, arrays: dict[str, Any]) -> dict[str, Any]:
        import numpy as np
        import pandas as pd

        frame = pd.DataFrame(
            {n: a if a.ndim == 1 else list(a) for n, a in arrays.items()}
        )
        found = self._function(frame)
        return {
            name: np.stack(found[name].to_list())
            if found[name].dtype == object
            else found[name].to_numpy()
            for name in found.columns
        }
