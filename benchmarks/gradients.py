"""Compares the allreduce of a model's gradients with a plain copy.

    python benchmarks/gradients.py --np=2
    hvdrun -np 2 -- python benchmarks/gradients.py --model=small

How to read the table, which rank 0 prints:

- `compute` is a `tf.function` that multiplies each tensor by a number and
  assigns the product to a variable. As in training, the input of the reduction
  has just been computed, and the sum may take its place.
- `single` adds an independent allreduce for each product, `grouped` adds one
  `grouped_allreduce`. `core` is a grouped one without TensorFlow, into new
  arrays.
- `copy` copies the same bytes from one array to another, on all ranks at the
  same time. On two ranks, an allreduce in place needs this memory traffic.
  `/ copy` is the ratio of the medians; for `single` and `grouped`, `compute` is
  subtracted first.
- Each round runs all of them in turn, so that other work on the machine hits
  all alike. `median` and `min` are over all calls. `slowest` is the median of
  the rank whose median is highest. Times are in ms.
"""

from __future__ import annotations

import json
import math
import os
import pathlib
import time
from collections.abc import Callable, Sequence

import _common
import _results
import numpy as np
from absl import app, flags

import hvd_keras as hvd

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no start-up remarks

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 2, "Ranks, where no launcher started this.", 1)
flags.DEFINE_enum(
    "model",
    "resnet50",
    ["resnet50", "small"],
    "The tensors: 161 of ResNet-50 (102 MB), or 1,000 of 1 KB.",
)
flags.DEFINE_integer("rounds", 10, "Rounds through all ways.", 1)
flags.DEFINE_integer("calls", 4, "Timed calls of a way in a round.", 1)

Call = Callable[[], object]
CORE_SUM = 1  # hvd.Sum, which would import TensorFlow


def shapes() -> list[list[int]]:
    """Returns the shapes of the tensors that --model names."""
    if FLAGS.model == "small":
        return [[256]] * 1000
    path = pathlib.Path(__file__).with_name("resnet50_shapes.json")
    found: list[list[int]] = json.loads(path.read_text())["conv_without_bias"]
    return found


def make_calls() -> dict[str, Call]:
    """Returns the ways to reduce the tensors, and the plain copy, by name."""
    import tensorflow as tf

    from hvd_keras import _core

    arrays = [np.full(s, hvd.rank() + 1, np.float32) for s in shapes()]
    # Capture them: TensorFlow takes longer to pass a thousand arguments than we
    # to reduce them. It also cannot forward captured tensors as outputs.
    tensors = [tf.constant(array) for array in arrays]

    def single(values: list[tf.Tensor]) -> list[tf.Tensor]:
        return [
            hvd.allreduce(value, op=hvd.Sum, name=f"single_{i}")
            for i, value in enumerate(values)
        ]

    def grouped(values: list[tf.Tensor]) -> list[tf.Tensor]:
        reduced: list[tf.Tensor] = hvd.grouped_allreduce(
            values, op=hvd.Sum, name="grouped"
        )
        return reduced

    factor = tf.constant(1.0)

    def call_of(reduce: Callable[[list[tf.Tensor]], list[tf.Tensor]]) -> Call:
        variables = [tf.Variable(tensor) for tensor in tensors]

        @tf.function
        def run() -> tf.Tensor:
            reduced = reduce([tensor * factor for tensor in tensors])
            for variable, value in zip(variables, reduced, strict=True):
                variable.assign(value)
            return tf.constant(0)

        run()
        if reduce is not compute:
            check(variables)
        return run

    def compute(values: list[tf.Tensor]) -> list[tf.Tensor]:
        return values

    check(_core.allreduce("core", arrays, CORE_SUM))
    num_elements = sum(math.prod(shape) for shape in shapes())
    source = np.ones(num_elements, np.float32)
    target = np.ones(num_elements, np.float32)
    return {
        "compute": call_of(compute),
        "single": call_of(single),
        "grouped": call_of(grouped),
        "core": lambda: _core.allreduce("core", arrays, CORE_SUM),
        "copy": lambda: np.copyto(target, source),
    }


def check(values: Sequence[object]) -> None:
    """Fails if a value is not the sum over the ranks."""
    expected = hvd.size() * (hvd.size() + 1) / 2
    for value in values:
        np.testing.assert_array_equal(np.asarray(value), expected)


def time_call(call: Call) -> float:
    """Returns the seconds of one call, which all ranks begin together."""
    _common.wait_for_all()
    start = time.perf_counter()
    result = call()
    seconds = time.perf_counter() - start
    del result
    return seconds


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    _common.start(FLAGS.np)
    calls = make_calls()
    seconds: dict[str, list[float]] = {way: [] for way in calls}
    for _ in range(FLAGS.rounds):
        for way, call in calls.items():
            call()  # fills the caches with its own data
            seconds[way] += [time_call(call) for _ in range(FLAGS.calls)]

    medians = {way: float(np.median(times)) for way, times in seconds.items()}
    slowest = _common.gather_over_ranks(list(medians.values())).max(axis=0)
    if hvd.rank() == 0:
        figures = [
            _results.figure(FLAGS.model, way, times)
            for way, times in seconds.items()
        ]
        _results.write("gradients", hvd.size(), figures)
        num_bytes = 4 * sum(math.prod(shape) for shape in shapes())
        print(
            f"{len(shapes())} tensors, {num_bytes / 1e6:.1f} MB float32, "
            f"{hvd.size()} ranks"
        )
        print(
            f"{'way':>8} {'median':>9} {'min':>9} {'slowest':>9} {'/ copy':>7}"
        )
        for (way, median), worst in zip(medians.items(), slowest, strict=True):
            times = [median, min(seconds[way]), float(worst)]
            columns = [f"{value * 1e3:>10.2f}" for value in times]
            if way in ("single", "grouped"):
                median -= medians["compute"]
            ratio = median / medians["copy"]
            print(f"{way:>8}" + "".join(columns) + f"{ratio:>10.2f}")
    hvd.shutdown()


if __name__ == "__main__":
    app.run(main)
