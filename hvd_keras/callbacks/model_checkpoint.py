"""The callback that saves the model, once for all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from hvd_keras import _backends
from hvd_keras._common import files, owners
from hvd_keras._keras import callback_lists, writers
from hvd_keras._keras.legacy import ForKeras3
from hvd_keras._keras.saving import saving_by, with_values
from hvd_keras.callbacks._background import BackgroundWriter, claim
from hvd_keras.callbacks._rank_zero import on_rank_zero


class ModelCheckpoint(ForKeras3, writers.CheckpointOfAllRanks):
    """Keras's `ModelCheckpoint`, on many ranks: rank 0 saves for all.

    It takes the arguments of `keras.callbacks.ModelCheckpoint`. All ranks must
    have it. Rank 0 decides by its logs whether to save, and writes; the others
    wait for the decision. With `MetricAverageCallback`, its logs are those of
    all ranks. `best` is the same on all ranks.

    Rank 0 copies the variables and writes them in a thread, while training goes
    on; so a file may be complete some steps later. A save waits for the one
    before, and the end of training for the last one. The file gets its name
    when it is complete: a job that is killed while it saves leaves the previous
    file. `BroadcastGlobalVariablesCallback` averages
    the moving statistics of `BatchNormalization`. If the model has that layer
    and `fit` has no validation data, this callback must come after it.

    One job at a time may write to a path. Training ends if a file cannot be
    written: the file is what it is for.

    Raises:
        FileInUseError: From `fit`, on rank 0: another job writes to the path.
        InvalidArgumentError: From `fit`, on rank 0: the path is a folder.
        OSError: From `fit`, on rank 0: a file could not be written. The next
            save raises it, or the end of training.
        HvdError: From `fit`, on the other ranks: rank 0 could not save.

    Example:

    >>> save = hvd.callbacks.ModelCheckpoint("best.keras", save_best_only=True)
    >>> model.fit(dataset, validation_data=held_out, callbacks=[save])
    """

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        path = str(self.filepath)
        claim("ModelCheckpoint", path, self._check_place)
        self._writer = BackgroundWriter("ModelCheckpoint/write", path)
        callback_list = callback_lists.beginning_callback_list()
        if self.save_freq != "epoch" and callback_list is not None:
            callback_lists.call_batch_ends_in_order(callback_list)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_end(logs)
        self._writer.finish()

    def _check_place(self) -> None:
        if "://" not in str(self.filepath):
            files.check_place(os.path.realpath(self.filepath))

    def hvd_save(self, save: Callable[[], None]) -> None:
        def save_and_tell() -> Any:
            self._writer.check()
            with saving_by(self.model, self._saving_later):
                save()
            return None if self.best is None else float(self.best)

        self.best = on_rank_zero("ModelCheckpoint", save_and_tell)

    def _saving_later(self, write: Callable[..., None]) -> Callable[..., None]:
        """Returns what writes a copy of the model, in a thread."""

        def later(filepath: Any, **options: Any) -> None:
            values = _copied_values(self.model)
            self._writer.begin(
                lambda: self._write(write, values, str(filepath), options)
            )

        return later

    def _write(
        self,
        write: Callable[..., Any],
        values: list[tuple[Any, Any]],
        filepath: str,
        options: dict[str, Any],
    ) -> None:
        owners.claim(str(self.filepath))
        with with_values(values), files.replacing(filepath) as path:
            write(path, **options)
            owners.claim(str(self.filepath))


def _copied_values(model: keras.Model) -> list[tuple[Any, Any]]:
    variables = {
        id(variable): variable
        for variable in [
            *model.variables,
            *model.metrics_variables,
            *getattr(model.optimizer, "variables", []),
        ]
        if isinstance(variable, keras.Variable)
    }
    return [
        (variable, np.array(_backends.current().read(variable)))
        for variable in variables.values()
    ]
