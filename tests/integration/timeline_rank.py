"""A rank that records a timeline; its argument says what else it does."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

import hvd_keras as hvd
from hvd_keras import _native


def reduce(name: str, num_elements: int = 4) -> None:
    _native.core().allreduce(name, [np.ones(num_elements, np.float32)], 1)


def train() -> None:
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer("sgd"), loss="mse")
    x = np.ones((8, 2), np.float32)
    model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0)


def main(what: str) -> None:
    hvd.init()
    for step in range(3):
        reduce("meet")
        if hvd.rank() == 1:
            time.sleep(0.1)  # the last
        reduce("small")
        reduce(f"large_{step}", 1 << 20)
    if what == "fit":
        train()
    if what == "death":
        time.sleep(0.3)  # the file has what came before
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        reduce("never")
    hvd.shutdown()


main(sys.argv[1])
