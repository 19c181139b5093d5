"""Times how much of the reduction of gradients hides behind backpropagation.

    python benchmarks/overlap.py --np=2

A stack of dense layers is trained in a `tf.function`, in turns: `compute`, with
the plain optimizer; `reduce`, the gradients of zeros alone; `both`, with the
distributed optimizer. With --batch chosen such that the first two take about as
long, rank 0 prints, as a JSON line, the medians in ms and the share of the
reduction that is hidden: `(compute + reduce - both) / reduce`. On one machine,
ranks that use all cores to compute have none left to reduce at the same time.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import _common
import _results
import numpy as np
from absl import app, flags

import hvd_keras as hvd

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no start-up remarks

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 2, "Ranks, where no launcher started this.", 1)
flags.DEFINE_integer("batch", 32, "Rows a rank has in a batch.", 1)
flags.DEFINE_integer("width", 1024, "Units of a layer.", 1)
flags.DEFINE_integer("layers", 12, "Layers.", 1)
flags.DEFINE_integer("rounds", 30, "Timed calls of each.", 1)


def make_calls() -> dict[str, Callable[[], Any]]:
    import keras
    import tensorflow as tf

    def make_step(optimizer: Any) -> Callable[[], Any]:
        layers = [
            keras.layers.Dense(FLAGS.width, activation="relu")
            for _ in range(FLAGS.layers)
        ]
        model = keras.Sequential([keras.Input((FLAGS.width,)), *layers])
        optimizer.build(model.trainable_variables)
        x = tf.ones([FLAGS.batch, FLAGS.width])

        @tf.function
        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients)
            return loss

        return step

    shapes = [[FLAGS.width, FLAGS.width], [FLAGS.width]] * FLAGS.layers
    zeros = [tf.zeros(shape) for shape in shapes]

    @tf.function
    def reduce() -> tf.Tensor:
        # Computed, as gradients are: the sums may take their place.
        values = [tf.identity(value) for value in zeros]
        with tf.control_dependencies(
            hvd.grouped_allreduce(values, name="reduce")
        ):
            return tf.constant(0)

    return {
        "compute": make_step(keras.optimizers.SGD(0.0)),
        "reduce": reduce,
        "both": make_step(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))),
    }


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    _common.start(FLAGS.np)
    calls = make_calls()
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(FLAGS.rounds + 2):
        for name, call in calls.items():
            _common.wait_for_all()
            start = time.perf_counter()
            np.asarray(call())
            if round_number > 1:
                seconds[name].append(time.perf_counter() - start)
    if hvd.rank() == 0:
        medians = {n: float(np.median(s)) * 1e3 for n, s in seconds.items()}
        hidden = medians["compute"] + medians["reduce"] - medians["both"]
        figures = {
            "ranks": hvd.size(),
            "megabytes": FLAGS.layers * (FLAGS.width + 1) * FLAGS.width * 4e-6,
            **{f"{name}_ms": round(ms, 2) for name, ms in medians.items()},
            "hidden": round(hidden / medians["reduce"], 3),
        }
        print(json.dumps(figures))
        _results.write(
            "overlap",
            hvd.size(),
            [
                _results.figure("step", name, times)
                for name, times in seconds.items()
            ],
        )
    hvd.shutdown()


if __name__ == "__main__":
    app.run(main)
