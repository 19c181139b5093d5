"""A rank of `chaos.py`: trains, counts samples and writes what it sees.

Arguments: a folder, the number of the host, the epochs, the milliseconds of a
step's computing, the seconds between commits, how many ranks begin the job.
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

# A rank that is started again has cores of its own in a real job. Here it must
# not take those of the ranks that train: so it gets ready with what they leave.
# Only root may raise the priority again.
if os.geteuid() == 0 and int(os.environ["HVD_MEMBER"]) >= int(sys.argv[6]):
    os.setpriority(os.PRIO_PROCESS, 0, 19)  # its later threads have it too

import keras
import numpy as np
import tensorflow as tf
from _held import held_by

import hvd_keras as hvd
from hvd_keras._job import membership, state
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

    # Not in a `train_step`: its model would trace a step for each membership.
    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        counts = tf.ones_like(x[:, 0])
        if sample_weight is not None:  # rows that fill a batch have -0.0
            weights = tf.reshape(sample_weight, [-1])
            counts = tf.cast(1.0 / weights > 0, x.dtype)
        rows = tf.one_hot(tf.cast(x[:, 0], tf.int32), NUM_ROWS)
        own = tf.reduce_sum(rows * counts[:, None], 0)
        self.seen.assign_add(hvd.allreduce(own, op=hvd.Sum, name="seen"))
        return super().compute_loss(x, y, y_pred, sample_weight, training)


class Writer(keras.callbacks.Callback):
    """Writes a line for each step and each epoch."""

    def __init__(self, file: TextIO) -> None:
        super().__init__()
        self._file = file
        self._epoch = 0

    def _write(self, **values: Any) -> None:
        values |= {
            "time": time.time(),
            "membership": state.generation(),
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
            member=int(os.environ["HVD_MEMBER"]),
            held=held_by(os.getpid()),
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


def run_quickly_in_the_job() -> None:
    """Gives this process hvdrun's priority when it joins the job."""
    priority = os.getpriority(os.PRIO_PROCESS, os.getppid())
    rejoin = membership.rejoin

    def rejoin_quickly() -> None:
        for thread in os.listdir("/proc/self/task"):
            os.setpriority(os.PRIO_PROCESS, int(thread), priority)
        rejoin()

    membership.rejoin = rejoin_quickly


def main() -> None:
    """Trains to the end."""
    die_in_commits()
    if os.getpriority(os.PRIO_PROCESS, 0) == 19:
        run_quickly_in_the_job()
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
    # Appends: a host that was started again gives its pids anew.
    with (FOLDER / f"rank_{OWN}.jsonl").open("a") as file:
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
