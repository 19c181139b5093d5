"""One rank of a `fit` that is killed and resumed; test_resume.py runs it."""

from __future__ import annotations

import argparse
import os
import pathlib
import random
import signal
import threading
import time

import keras
import numpy as np

import hvd_keras as hvd

NUM_BATCHES = 10


class Batches(keras.utils.PyDataset):
    """Gives this rank's batches, the same in each epoch."""

    def __len__(self) -> int:
        return NUM_BATCHES

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        generator = np.random.default_rng(100 * hvd.rank() + index)
        x = generator.normal(size=(8, 6)).astype(np.float32)
        return x, x[:, :1] * x[:, 1:2]


class KillJob(keras.callbacks.Callback):
    """Kills the whole job shortly after a batch begins, maybe during a save."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._left = at

    def on_train_batch_begin(self, batch, logs=None) -> None:
        self._left -= 1
        if self._left == 0 and hvd.rank() == 1:
            delay_seconds = random.uniform(0.0, 0.01)
            kill = (0, signal.SIGKILL)
            threading.Timer(delay_seconds, os.killpg, kill).start()


class Slow(keras.callbacks.Callback):
    """Takes its time, and says how far it is."""

    def __init__(self, pause_seconds: float) -> None:
        super().__init__()
        self._pause_seconds = pause_seconds
        self._num_batches = 0

    def on_train_batch_begin(self, batch, logs=None) -> None:
        self._num_batches += 1
        print("batch", self._num_batches, flush=True)
        time.sleep(self._pause_seconds)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=pathlib.Path, required=True)
    parser.add_argument("--kill-at", type=int, default=0)
    parser.add_argument("--save-freq", type=int, default=0)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--local-updates", type=int)
    parser.add_argument("--has-outer", action="store_true")
    args = parser.parse_args()
    hvd.init()
    keras.utils.set_random_seed(1 + hvd.rank())
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1),
        ]
    )
    updates = None
    if args.local_updates:
        nesterov = keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
        updates = hvd.LocalUpdates(
            args.local_updates,
            within="rank",
            outer=nesterov if args.has_outer else "average",
        )
    adam = keras.optimizers.Adam(0.01)
    model.compile(hvd.DistributedOptimizer(adam, local_updates=updates), "mse")
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        KillJob(args.kill_at),
    ]
    if args.pause:
        callbacks.append(Slow(args.pause))
    if args.save_freq:
        backup = hvd.callbacks.BackupAndRestore(
            args.dir / "backup", args.save_freq
        )
        callbacks.append(backup)
    model.fit(
        Batches(), epochs=3, shuffle=False, verbose=0, callbacks=callbacks
    )
    variables = [*model.weights, *model.optimizer.variables]
    values = [variable.numpy() for variable in variables]
    np.savez(args.dir / f"rank.{hvd.rank()}.npz", *values)
    print("epochs", len(model.history.epoch), flush=True)


if __name__ == "__main__":
    main()
