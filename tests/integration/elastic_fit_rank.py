"""One rank of an elastic `fit`; test_elastic_fit.py runs it.

Its last line is a JSON object. It tells how often each row was used, in the
steps that count: a callback counts, and a commit holds the count.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import pathlib
import signal
import time

import elastic_moments
import keras
import numpy as np

import hvd_keras as hvd
from hvd_keras import _core
from hvd_keras.elastic import _commits

NUM_ROWS = 480
MEMBER = int(os.environ.get("HVD_MEMBER", "0"))
NUM_TRACES = 0


class Traced(keras.layers.Layer):
    """Counts how often it is traced for training."""

    def call(self, inputs, training=False):
        global NUM_TRACES
        NUM_TRACES += bool(training)
        return inputs


class UsedRows(keras.metrics.Metric):
    """Marks the rows of a batch; their numbers are the second target."""

    def __init__(self) -> None:
        super().__init__(name="used_rows")
        self.used = self.add_variable((NUM_ROWS,), "zeros", "float32")

    def update_state(self, y, y_pred, sample_weight=None) -> None:
        rows = keras.ops.cast(y[:, 1], "int32")
        marks = keras.ops.one_hot(rows, NUM_ROWS, dtype="float32")
        if sample_weight is not None:  # 0 for a row that only fills a batch
            marks *= keras.ops.cast(sample_weight > 0, "float32")[:, None]
        self.used.assign(self.used + keras.ops.sum(marks, axis=0))

    def result(self):
        return keras.ops.sum(self.used)


class Count(keras.callbacks.Callback):
    """Counts how often all ranks have used each row, by epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.now = np.zeros(NUM_ROWS, np.float32)
        self.epochs: list[list[int]] = []
        self.num_steps = 0
        self.begun: list[int] = []

    def on_train_begin(self, logs=None) -> None:
        self.begun.append(MEMBER)

    def on_train_batch_end(self, batch, logs=None) -> None:
        (metric,) = (
            each
            for group in self.model.metrics
            for each in getattr(group, "metrics", [])
            if isinstance(each, UsedRows)
        )
        own = np.array(keras.ops.convert_to_numpy(metric.used))
        (used,) = _core.allreduce("used_rows", [own], 1)
        self.now = self.now + np.asarray(used)
        self.num_steps += 1
        metric.used.assign(np.zeros_like(own))

    def on_epoch_end(self, epoch, logs=None) -> None:
        self.epochs.append([int(self.now.min()), int(self.now.max())])
        self.now = np.zeros(NUM_ROWS, np.float32)


class Act(keras.callbacks.Callback):
    """Does something to this rank after some steps; paces the steps."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.hvd_args = args
        self.num_done = 0

    def on_train_batch_end(self, batch, logs=None) -> None:
        time.sleep(self.hvd_args.pause)
        if self.hvd_args.action == "slow" and MEMBER in self.hvd_args.members:
            time.sleep(0.1)
        NUM_DONE[0] += 1
        if NUM_DONE[0] == 5:
            self.hvd_args.traces_before = NUM_TRACES
            print("training", flush=True)
        if self.hvd_args.dies == MEMBER and NUM_DONE[0] == self.hvd_args.at:
            elastic_moments.arm(self.hvd_args.moment)
        if MEMBER in self.hvd_args.members and NUM_DONE[0] == self.hvd_args.at:
            act(self.hvd_args.action)

    def on_test_begin(self, logs=None) -> None:
        if MEMBER in self.hvd_args.members and self.hvd_args.action == "test":
            act("kill")


NUM_DONE = [0]  # by this process, also what was lost


def act(action: str) -> None:
    kill = (os.getpid(), signal.SIGKILL)
    if action == "kill":
        os.kill(*kill)
    elif action == "leave":
        os.kill(os.getpid(), signal.SIGTERM)
    elif action == "stall":
        time.sleep(6)
    elif action == "hang":
        time.sleep(1000)
    elif action == "commit":  # die in the next one, when it is half made
        written = _commits.Commits._written

        def die(self, *args):
            written(self, *args)
            os.kill(*kill)

        _commits.Commits._written = die


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--action", default="")
    parser.add_argument("--at", type=int, default=0)
    parser.add_argument("--members", type=int, nargs="*", default=[])
    parser.add_argument("--moment", help="at which member --dies")
    parser.add_argument("--dies", type=int)
    parser.add_argument("--commit-seconds", type=float, default=0.3)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--dir", type=pathlib.Path)
    parser.add_argument("--policy", default="split")
    parser.add_argument("--local-updates", type=int)
    args = parser.parse_args()
    hvd.init()
    if args.moment:
        elastic_moments.prepare()
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            Traced(),
            keras.layers.Dense(8, activation="tanh"),
            keras.layers.Dropout(0.2),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(
        hvd.DistributedOptimizer(
            keras.optimizers.Adam(0.01),
            local_updates=args.local_updates
            and hvd.LocalUpdates(args.local_updates, within="rank"),
        ),
        lambda y, y_pred: keras.ops.mean((y[:, :1] - y_pred) ** 2, axis=-1),
        weighted_metrics=[UsedRows()],
    )
    x = np.random.default_rng(0).normal(size=(NUM_ROWS, 6)).astype(np.float32)
    y = np.stack([x[:, 0], np.arange(NUM_ROWS)], 1).astype(np.float32)
    data = hvd.shard(
        (x, y), batch_size=4, policy=args.policy, shuffle=True, seed=3
    )
    held_out = None
    if args.action == "test":
        held_out = hvd.shard((x[:24], y[:24]), batch_size=4)
    count = Count()
    history = hvd.elastic.fit(
        model,
        data,
        epochs=args.epochs,
        validation_data=held_out,
        verbose=0,
        callbacks=[count, Act(args)],
        commit_seconds=args.commit_seconds,
        directory=args.dir,
    )
    digest = hashlib.sha256()
    # The slots of ranks that train apart are their own.
    slots = [] if args.local_updates else model.optimizer.variables
    for variable in [*model.weights, *slots]:
        digest.update(keras.ops.convert_to_numpy(variable.value).tobytes())
    facts = {
        "member": MEMBER,
        "pid": os.getpid(),
        "size": hvd.size(),
        "weights": digest.hexdigest(),
        "rows": count.epochs,
        "steps": count.num_steps,
        "steps_done": NUM_DONE[0],
        "new_traces": NUM_TRACES - args.traces_before,
        "begun": count.begun,
        "epochs": history.epoch,
        "losses": len(history.history["loss"]),
        "commit_ms": history.history["hvd/commit_ms"],
    }
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
