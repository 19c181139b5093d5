"""Times small allreduces with and without a timeline, in turns.

    hvdrun -np 2 -- python benchmarks/timeline.py

One process does both: in each round it times one way, then the other, and the
order changes from round to round. So other work on the machine hits both alike.

How to read the table, which rank 0 prints:

- `call` is one allreduce after the other, without TensorFlow: the core's
  shortest way. `graph` is one of `--tensors` allreduces in a `tf.function`,
  which are in flight together. `fit` is a step of Keras's `fit`; the model is a
  small CNN.
- `off` and `on` are medians over the rounds, in microseconds an allreduce
  or a step.
- `cost` is the median over the rounds of on / off - 1 of a round, with its
  quartiles. The goal is 3 %.
- `bytes` is what one takes of the rank's file.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import _common
import _results
import numpy as np
from absl import app, flags

import hvd_keras as hvd

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no start-up remarks

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 2, "Ranks, where no launcher started this.", 1)
flags.DEFINE_list("ways", ["call", "graph", "fit"], "What to time.")
flags.DEFINE_integer("bytes", 4096, "Bytes of a tensor, a multiple of 4.", 4)
flags.DEFINE_integer("tensors", 100, "Allreduces of a graph.", 1)
flags.DEFINE_integer("rounds", 40, "Rounds of both ways.", 1)
flags.DEFINE_float("seconds", 0.1, "Time of a way in a round, about.")

CORE_SUM = 1  # hvd.Sum, which would import TensorFlow

# Runs allreduces and returns how many.
Work = Callable[[], int]


def make_work(way: str) -> Work:
    """Returns what to time."""
    if way == "fit":
        return fit_of_cnn()
    values = np.ones(FLAGS.bytes // 4, np.float32)
    if way == "call":
        from hvd_keras import _core

        def call() -> int:
            _core.allreduce("small", [values], CORE_SUM)
            return 1

        return call

    import tensorflow as tf

    tensor = tf.constant(values)

    @tf.function
    def reduce_all(x: tf.Tensor) -> list[tf.Tensor]:
        return [
            hvd.allreduce(x, hvd.Sum, name=f"small_{i}")
            for i in range(FLAGS.tensors)
        ]

    def graph() -> int:
        reduce_all(tensor)[0].numpy()
        return int(FLAGS.tensors)

    return graph


def fit_of_cnn() -> Work:
    """Returns what trains a few steps."""
    import keras

    num_steps, batch_size = 10, 32
    layers = [
        keras.layers.Conv2D(16, 3, activation="relu"),
        keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
        keras.layers.Flatten(),
        keras.layers.Dense(128, activation="relu"),
        keras.layers.Dense(10),
    ]
    model = keras.Sequential([keras.Input((28, 28, 1)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss)
    num_rows = num_steps * batch_size
    generator = np.random.default_rng(hvd.rank())
    x = generator.normal(size=(num_rows, 28, 28, 1)).astype(np.float32)
    y = np.arange(num_rows) % 10
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]

    def fit() -> int:
        model.fit(x, y, batch_size, verbose=0, callbacks=callbacks)
        return num_steps

    return fit


def time_work(work: Work, num_calls: int) -> float:
    """Returns the seconds of an allreduce, or of a step."""
    _common.wait_for_all()
    begin = time.perf_counter()
    num_done = sum(work() for _ in range(num_calls))
    return (time.perf_counter() - begin) / num_done


def time_both(work: Work, folder: str) -> tuple[np.ndarray, float]:
    """Times a way in turns.

    Returns:
        The seconds of an allreduce by round, then by whether a timeline is on;
        the bytes that it takes of the file.
    """
    seconds = time_work(work, 20) * work()
    # All ranks must make equally many calls.
    slowest = _common.gather_over_ranks([seconds]).max()
    num_calls = max(1, int(FLAGS.seconds / slowest))
    times = np.zeros((FLAGS.rounds, 2))
    num_bytes = []
    for number in range(FLAGS.rounds):
        for is_on in (False, True) if number % 2 else (True, False):
            if is_on:
                hvd.start_timeline(folder)
            times[number, int(is_on)] = time_work(work, num_calls)
            if is_on:
                hvd.stop_timeline()
                (path,) = Path(folder).glob(f"*_{hvd.rank()}.hvdtrace")
                num_done = num_calls * work()
                num_bytes.append(path.stat().st_size / num_done)
    return times, float(np.median(num_bytes))


def main(argv: list[str]) -> None:
    """Times each way and prints the table."""
    del argv
    _common.start(FLAGS.np)
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        for way in FLAGS.ways:
            times, num_bytes = time_both(make_work(way), folder)
            figures += [
                _results.figure(way, name, times[:, index])
                for index, name in enumerate(("off", "on"))
            ]
            if hvd.rank() == 0:
                off, on = np.median(times, axis=0) * 1e6
                cost = 100 * (times[:, 1] / times[:, 0] - 1)
                low, middle, high = np.percentile(cost, [25, 50, 75])
                print(
                    f"{way:6} off {off:8.2f} us  on {on:8.2f} us  cost "
                    f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})  "
                    f"{num_bytes:.0f} bytes"
                )
    if hvd.rank() == 0:
        _results.write("timeline", hvd.size(), figures)
    hvd.shutdown()


if __name__ == "__main__":
    app.run(main)
