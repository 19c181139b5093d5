"""A rank of `chaos.py`: trains, counts samples and writes what it sees.

Arguments: a folder, the number of the host, the epochs, the milliseconds of a
step's computing, the seconds between commits.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no start-up remarks

import keras
import numpy as np
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras._job import state
from hvd_keras.elastic._commits import Commits

FOLDER = Path(sys.argv[1])
OWN = f"{sys.argv[2]}_{os.getpid()}"
EPOCHS, STEP_MS, COMMIT_SECONDS = (
    int(sys.argv[3]),
    float(sys.argv[4]),
    float(sys.argv[5]),
)
NUM_ROWS, BATCH = 1920, 8


@keras.saving.register_keras_serializable("chaos")
class Model(keras.Model):
    """Learns, and counts how often it has seen each row, on all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(32, activation="tanh")
        self.last = keras.layers.Dense(1)
        self.seen = self.add_weight(
            shape=(NUM_ROWS,), initializer="zeros", trainable=False
        )

    def call(self, inputs: Any) -> Any:
        return self.last(self.hidden(inputs[:, 1:]))

    def train_step(self, data: Any) -> Any:
        x, _, weights = keras.utils.unpack_x_y_sample_weight(data)
        counts = tf.ones_like(x[:, 0])
        if weights is not None:  # rows that only fill a batch have -0.0
            counts = tf.cast(1.0 / tf.reshape(weights, [-1]) > 0, x.dtype)
        rows = tf.one_hot(tf.cast(x[:, 0], tf.int32), NUM_ROWS)
        own = tf.reduce_sum(rows * counts[:, None], 0)
        logs = super().train_step(data)
        self.seen.assign_add(hvd.allreduce(own, op=hvd.Sum, name="seen"))
        return logs


class Writer(keras.callbacks.Callback):
    """Writes a line for each step and each epoch."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file
        self._epoch = 0

    def _write(self, **values: Any) -> None:
        values |= {
            "time": time.time(),
            "membership": state.epoch(),
            "rank": hvd.rank(),
            "size": hvd.size(),
            "iterations": int(self.model.optimizer.iterations.numpy()),
        }
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        time.sleep(STEP_MS / 1e3)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._write(kind="step", epoch=self._epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        seen = self.model.seen.numpy()
        self._write(
            kind="epoch",
            epoch=epoch,
            loss=float((logs or {})["loss"]),
            commit_ms=(logs or {}).get("hvd/commit_ms", 0.0),
            fewest=int(seen.min()),
            most=int(seen.max()),
        )


def die_in_commits() -> None:
    """Has this process die in a commit, once the benchmark wants that."""
    wish, add = FOLDER / f"die_{OWN}", Commits.add

    def add_or_die(*arguments: Any) -> bool:
        if wish.exists():
            moment = random.uniform(0, 0.002)
            end = (os.getpid(), signal.SIGKILL)
            threading.Timer(moment, os.kill, end).start()
        return add(*arguments)

    Commits.add = add_or_die  # type: ignore[method-assign,assignment]


def main() -> None:
    """Trains to the end."""
    die_in_commits()
    keras.utils.set_random_seed(1)
    hvd.init()
    generator = np.random.default_rng(7)
    features = generator.normal(size=(NUM_ROWS, 16)).astype(np.float32)
    y = np.sin(features.sum(1, keepdims=True)).astype(np.float32)
    x = np.concatenate(
        [np.arange(NUM_ROWS, dtype=np.float32)[:, None], features], 1
    )
    model = Model()
    model(np.zeros((1, 17), np.float32))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.02))
    model.compile(optimizer, "mse")
    data = hvd.shard((x, y), batch_size=BATCH, shuffle=True, seed=3)
    with (FOLDER / f"rank_{OWN}.jsonl").open("w") as file:
        hvd.elastic.fit(
            model,
            data,
            epochs=EPOCHS,
            verbose=0,
            callbacks=[Writer(file)],
            commit_seconds=COMMIT_SECONDS,
        )
        digest = [float(np.float64(w).sum()) for w in model.get_weights()]
        bits = b"".join(np.asarray(w).tobytes() for w in model.get_weights())
        file.write(
            json.dumps(
                {
                    "kind": "end",
                    "rank": hvd.rank(),
                    "digest": hashlib.sha256(bits).hexdigest(),
                    "sums": digest[:1],
                }
            )
            + "\n"
        )


main()
