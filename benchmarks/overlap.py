"""Measures how much of the reduction hides behind backpropagation.

    python benchmarks/overlap.py --np=2

It trains a stack of dense layers in a `tf.function`, in turns, without and with
XLA. `compute` has the plain optimizer, `both` the distributed one. `reduce` is
the reduction alone, of gradients that are zero. With XLA there is also
`xla_split`, the same step in three parts (gradients | reduction | update): XLA
compiles the first and the last.

Choose --batch so that `compute` and `reduce` take about as long. Rank 0 prints,
as a JSON line, the medians in ms and the share of the reduction that is hidden:
`(compute + reduce - both) / reduce`. On one machine, ranks that use all cores
to compute have none left to reduce at the same time.
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
flags.DEFINE_string("optimizer", "SGD", "Class in keras.optimizers.")
flags.DEFINE_integer("rounds", 30, "Timed calls of each.", 1)

Call = Callable[..., Any]


class Stack:
    """A model, an optimizer and the parts of a step."""

    def __init__(self, is_distributed: bool) -> None:
        import keras
        import tensorflow as tf

        keras.utils.set_random_seed(0)  # the ranks compare their weights
        layers = [
            keras.layers.Dense(FLAGS.width, activation="relu")
            for _ in range(FLAGS.layers)
        ]
        self._model = keras.Sequential([keras.Input((FLAGS.width,)), *layers])
        self._optimizer = getattr(keras.optimizers, FLAGS.optimizer)(0.0)
        if is_distributed:
            self._optimizer = hvd.DistributedOptimizer(self._optimizer)
        self._optimizer.build(self._model.trainable_variables)
        self._x = tf.ones([FLAGS.batch, FLAGS.width])

    def gradients(self) -> list[Any]:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self._model(self._x, training=True))
        gradients: list[Any] = tape.gradient(
            loss, self._model.trainable_variables
        )
        return gradients

    def update(self, gradients: list[Any]) -> None:
        self._optimizer.apply(gradients)

    def step(self) -> None:
        self.update(self.gradients())


def make_calls() -> dict[str, Call]:
    import tensorflow as tf

    shapes = [[FLAGS.width, FLAGS.width], [FLAGS.width]] * FLAGS.layers
    zeros = [tf.zeros(shape) for shape in shapes]

    @tf.function
    def reduce() -> tf.Tensor:
        # Computed like gradients, so that the sums may take their place.
        values = [tf.identity(value) for value in zeros]
        with tf.control_dependencies(
            hvd.grouped_allreduce(values, name="reduce")
        ):
            return tf.constant(0)

    def compiled(function: Callable[..., Any], xla: bool) -> Call:
        return tf.function(function, jit_compile=xla, autograph=False)

    calls: dict[str, Call] = {"reduce": reduce}
    for prefix, xla in (("", False), ("xla_", True)):
        plain, distributed = Stack(False), Stack(True)
        calls[f"{prefix}compute"] = compiled(plain.step, xla)
        calls[f"{prefix}both"] = compiled(distributed.step, xla)
    parts = Stack(False)
    first, last = compiled(parts.gradients, True), compiled(parts.update, True)

    @tf.function
    def split() -> None:
        last(hvd.grouped_allreduce(first(), name="split"))

    calls["xla_split"] = split
    return calls


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
            call()
            if round_number > 1:
                seconds[name].append(time.perf_counter() - start)
    if hvd.rank() == 0:
        ms = {n: float(np.median(s)) * 1e3 for n, s in seconds.items()}
        hidden = {
            f"{prefix}hidden": round(
                1
                + (ms[f"{prefix}compute"] - ms[f"{prefix}both"]) / ms["reduce"],
                3,
            )
            for prefix in ("", "xla_")
        }
        figures = {
            "ranks": hvd.size(),
            "optimizer": FLAGS.optimizer,
            "megabytes": FLAGS.layers * (FLAGS.width + 1) * FLAGS.width * 4e-6,
            **{f"{name}_ms": round(value, 2) for name, value in ms.items()},
            **hidden,
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
