"""A rank of a `fit` with a fault; the first argument says which.

Arguments: "input", "link", "stop" or "forget"; a folder for a note.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import hvd_keras as hvd

FAULT, FOLDER = sys.argv[1], Path(sys.argv[2])
WIDTH = 300 if FAULT == "link" else 64


class Rows(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> Any:
        if FAULT == "input":
            time.sleep(0.05 * hvd.rank())  # the line
        return np.ones((8, 16), np.float32), np.zeros((8, 1), np.float32)


class Fault(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # While it compiled, Keras has read 10 batches ahead: they come at once.
        if batch == 20 and hvd.rank() == 0:
            (FOLDER / "ready").touch()
        if FAULT == "stop":
            time.sleep(0.05)  # the job must last longer than the stop
        if FAULT == "forget" and (batch < 20 or hvd.rank() != 1):
            hvd.allreduce(np.ones(3), name="mean_loss")


hvd.init()
layers = [keras.layers.Dense(WIDTH) for _ in range(4)]
model = keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1e-6))
model.compile(optimizer, "mse")
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.CommunicationLogger(report_seconds=1.0),
    Fault(),
]
# One epoch: between two, Keras may pause for a second where data are a
# PyDataset, in one process alone too.
model.fit(Rows(), epochs=1, callbacks=callbacks, verbose=0)
