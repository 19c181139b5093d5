"""Times a step of an unchanged script beside one with the four changes.

    python benchmarks/unchanged.py --np=2

It starts two jobs: `hvdrun --distribute` of a script that knows nothing of
ranks, and `hvdrun` of the same training with `hvd.init`, `hvd.shard`, the
distributed optimizer and the broadcast. Both train a small CNN on the same
arrays in the same global batches. They take turns: one waits while the other
trains for an epoch. It prints, as a JSON line, for each way the milliseconds of
a step (the median over the epochs but the first), and `ratio`: unchanged by
changed, the median over the pairs of epochs.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence

import _results
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 2, "Ranks.", 1)
flags.DEFINE_integer("batch", 64, "Images a rank has in a batch.", 1)
flags.DEFINE_integer("steps", 40, "Batches in a timed epoch.", 1)
flags.DEFINE_integer("epochs", 20, "Timed epochs of each way.", 1)
flags.DEFINE_enum("backend", "tensorflow", ["tensorflow", "jax", "torch"], "")

_SCRIPT = """
import json, os, sys, time
import numpy as np
import keras
batch, steps, epochs, num_ranks, place = map(int, sys.argv[1:6])
turns = os.open(sys.argv[6], os.O_RDWR | os.O_APPEND)
keras.utils.set_random_seed(0)
x = np.random.random((batch * steps, 28, 28, 1)).astype("float32")
y = np.random.randint(0, 10, batch * steps)
layers = keras.layers
model = keras.Sequential([
    keras.Input((28, 28, 1)),
    layers.Conv2D(32, 3, activation="relu"),
    layers.Conv2D(64, 3, activation="relu"),
    layers.MaxPooling2D(),
    layers.Flatten(),
    layers.Dense(128, activation="relu"),
    layers.Dense(10, activation="softmax"),
])
class Clock(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seconds = []
    def on_epoch_begin(self, epoch, logs=None):
        # Each rank writes a byte at the end of its turn.
        while os.fstat(turns).st_size < num_ranks * (2 * epoch + place):
            time.sleep(0.005)
        self.begin = time.perf_counter()
    def on_epoch_end(self, epoch, logs=None):
        self.seconds.append(time.perf_counter() - self.begin)
        os.write(turns, b".")
clock = Clock()
"""
_UNCHANGED = """
model.compile(keras.optimizers.Adam(1e-3), "sparse_categorical_crossentropy")
model.fit(x, y, batch_size=batch, epochs=epochs, verbose=0, callbacks=[clock])
print(json.dumps(clock.seconds))
"""
_CHANGED = """
import hvd_keras as hvd
hvd.init()
optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3))
model.compile(optimizer, "sparse_categorical_crossentropy")
broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
data = hvd.shard((x, y), global_batch_size=batch, shuffle=True)
callbacks = [broadcast, hvd.callbacks.MetricAverageCallback(), clock]
model.fit(data, epochs=epochs, verbose=0, callbacks=callbacks)
if hvd.rank() == 0:
    print(json.dumps(clock.seconds))
"""
_WAYS = {
    "unchanged": (["--distribute"], _SCRIPT + _UNCHANGED),
    "changed": ([], _SCRIPT + _CHANGED),
}


def start(way: str, turns: str) -> subprocess.Popen[str]:
    """Starts a job that takes turns with another, by a file of both."""
    options, script = _WAYS[way]
    launch = [sys.executable, "-m", "hvd_keras.run", "-np", str(FLAGS.np)]
    sizes = FLAGS.batch * FLAGS.np, FLAGS.steps, FLAGS.epochs + 1, FLAGS.np
    arguments = [*map(str, sizes), str(list(_WAYS).index(way)), turns]
    return subprocess.Popen(
        [*launch, *options, sys.executable, "-c", script, *arguments],
        env=os.environ
        | {"KERAS_BACKEND": FLAGS.backend, "TF_CPP_MIN_LOG_LEVEL": "2"},
        stdout=subprocess.PIPE,
        text=True,
    )


def seconds_of_steps(job: subprocess.Popen[str]) -> list[float]:
    """Waits for a job; returns the seconds of a step in each timed epoch."""
    out, _ = job.communicate()
    if job.returncode:
        raise subprocess.CalledProcessError(job.returncode, job.args)
    epochs = json.loads(out[out.rindex("[") :])  # behind "[0] "
    return [epoch / FLAGS.steps for epoch in epochs[1:]]


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    with tempfile.NamedTemporaryFile() as turns:
        jobs = {way: start(way, turns.name) for way in _WAYS}
        try:
            seconds = {way: seconds_of_steps(job) for way, job in jobs.items()}
        finally:
            for job in jobs.values():  # one that waits for the other's turn
                job.terminate()
    ratios = [
        a / b
        for a, b in zip(seconds["unchanged"], seconds["changed"], strict=True)
    ]
    figures = {
        "ranks": FLAGS.np,
        "backend": FLAGS.backend,
        **{
            f"{way}_ms": round(1e3 * statistics.median(times), 3)
            for way, times in seconds.items()
        },
        "ratio": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }
    print(json.dumps(figures))
    _results.write(
        "unchanged",
        FLAGS.np,
        [
            _results.figure(f"step on {FLAGS.backend}", way, times)
            for way, times in seconds.items()
        ],
    )


if __name__ == "__main__":
    app.run(main)
