"""A rank of a `fit` in which rank 1 waits for its input."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np

import hvd_keras as hvd


class Rows(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.05 * hvd.rank())
        x = np.full((8, 16), index + hvd.rank(), np.float32)
        return x, np.zeros((8, 1), np.float32)


hvd.init()
layers = [keras.layers.Dense(64) for _ in range(4)]
model = keras.Sequential([keras.Input((16,)), *layers, keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1e-3))
model.compile(optimizer, "mse")
start = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
model.fit(Rows(), epochs=1, callbacks=[start], verbose=0)
