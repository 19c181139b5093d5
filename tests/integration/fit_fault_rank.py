"""One rank of a `fit` in which rank 1 dies; test_fit_faults.py runs it."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import signal
import time

import keras
import numpy as np
import tensorflow as tf

import hvd_keras as hvd


class DieAtBatch(keras.callbacks.Callback):
    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self._path = path

    def on_train_batch_begin(self, batch, logs=None):
        if hvd.rank() == 1 and batch == 3:
            self._path.write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=pathlib.Path, required=True)
    args = parser.parse_args()
    hvd.init()
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x = np.ones((64, 4), np.float32)
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        DieAtBatch(args.dir / "death"),
    ]
    try:
        model.fit(x, x[:, :1], batch_size=8, callbacks=callbacks, verbose=0)
    except hvd.PeerLostError as error:
        facts = {
            "time": time.monotonic(),
            "is_tensorflow's": isinstance(error, tf.errors.UnknownError),
            "text": str(error),
        }
        (args.dir / f"rank.{hvd.rank()}").write_text(json.dumps(facts))
        raise


if __name__ == "__main__":
    main()
