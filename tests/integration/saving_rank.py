"""One rank of a `fit` that saves a lot; test_saving_faults.py runs it."""

from __future__ import annotations

import argparse
import pathlib
import time

import keras
import numpy as np

import hvd_keras as hvd

# Each is a kind of files, of those that rank 0 writes for all.
KINDS = ("backup", "commits", "model", "weights", "timeline")


# Of this process; commits hold what callbacks remember.
begun: list[int] = []


class Pace(keras.callbacks.Callback):
    """Takes its time, and says when training has begun."""

    def __init__(self, pause_seconds: float) -> None:
        super().__init__()
        self._pause_seconds = pause_seconds

    def on_train_batch_end(self, batch, logs=None) -> None:
        time.sleep(self._pause_seconds)
        if not begun and hvd.rank() == 0:
            begun.append(batch)
            print("training", flush=True)


def callbacks_of(kinds: list[str], folder: pathlib.Path) -> list:
    made = {
        "backup": lambda: hvd.callbacks.BackupAndRestore(
            folder / "backup", save_freq=1, delete_checkpoint=False
        ),
        "commits": lambda: hvd.elastic.Elastic(0.0, folder / "commits"),
        "model": lambda: hvd.callbacks.ModelCheckpoint(folder / "m.keras"),
        "weights": lambda: hvd.callbacks.ModelCheckpoint(
            folder / "{epoch}.weights.h5", save_weights_only=True, save_freq=2
        ),
    }
    return [made[kind]() for kind in kinds if kind in made]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir", type=pathlib.Path, required=True)
    parser.add_argument("--result", type=pathlib.Path, required=True)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, required=True)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--units", type=int, default=8)
    args = parser.parse_args()
    hvd.init()
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(args.units, activation="tanh"),
            keras.layers.Dense(1),
        ]
    )
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    x = np.random.default_rng(0).normal(size=(80, 6)).astype(np.float32)
    if "timeline" in args.kinds:
        hvd.start_timeline(args.dir / "timeline")
    model.fit(
        hvd.shard((x, x[:, :1]), batch_size=4, shuffle=True, seed=1),
        epochs=args.epochs,
        verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            Pace(args.pause),
            *callbacks_of(args.kinds, args.dir),
        ],
    )
    hvd.stop_timeline()
    if hvd.rank() == 0:
        values = [np.array(each) for each in model.get_weights()]
        np.savez(args.result, *values)
        print("epochs", len(model.history.epoch), flush=True)


if __name__ == "__main__":
    main()
