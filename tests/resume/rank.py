"""One rank that trains on each loader, up to a kill or to the end.

Usage: python -m resume.rank DIR STEPS

Each `fit` is interrupted after STEPS steps; after the last one the whole job is
killed. With 0 each goes on from there, and ends. Each step adds a line to
DIR/<loader>/rows: the epoch, the batch, and the rows that this rank has used.
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import sys
from typing import Any

import keras
import numpy as np

import hvd_keras as hvd
from resume import loaders


class Noting(keras.Model):
    """A small model that notes which rows it trains on."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(4, activation="tanh")
        self.last = keras.layers.Dense(1)
        self.seen: list[int] = []
        self.call(np.zeros((1, loaders.NUM_FEATURES), np.float32))
        self.built = True

    def call(self, x: Any) -> Any:
        return self.last(self.dense(x[:, 1:]))

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        found = keras.ops.convert_to_numpy(x)[:, 0].astype(int)
        if sample_weight is not None:  # that of filling is -0.0
            weights = keras.ops.convert_to_numpy(sample_weight).ravel()
            found = found[~np.signbit(weights)]
        self.seen = found.tolist()
        return super().compute_loss(x, y, y_pred, sample_weight, training)


class Note(keras.callbacks.Callback):
    """Writes down the rows of each step, and ends `fit` after some."""

    def __init__(self, path: pathlib.Path, num_steps: int) -> None:
        super().__init__()
        self._path = path / f"rows.{hvd.rank()}"
        self._num_left = num_steps
        self._epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._num_left == 1:
            raise InterruptedError  # its rows are not in a backup
        self._num_left -= 1
        line = json.dumps([self._epoch, batch, self.model.seen])
        with self._path.open("a") as file:
            file.write(line + "\n")


def train(name: str, path: pathlib.Path, num_steps: int) -> None:
    keras.utils.set_random_seed(1)
    model = Noting()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)),
        "mse",
        metrics=["mae"],
        run_eagerly=True,
    )
    backup = hvd.callbacks.BackupAndRestore(path / "backup", save_freq=1)
    ours = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
    ]
    history = model.fit(
        loaders.ALL[name](),
        epochs=loaders.EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=[*ours, Note(path, num_steps), backup],
    )
    weights = [w.tolist() for w in model.get_weights()]
    result = {"weights": weights, "history": history.history}
    (path / f"end.{hvd.rank()}").write_text(json.dumps(result))


def main() -> None:
    directory, num_steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
    hvd.init()
    for number, name in enumerate(loaders.found()):
        path = directory / str(number)
        path.mkdir(parents=True, exist_ok=True)
        try:
            train(name, path, num_steps)
        except InterruptedError:
            hvd.barrier()
    if num_steps and hvd.rank() == 0:
        os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
