"""Times one allreduce, from 4 B to 64 MB.

Run it with the launcher, or without (then it starts `--np` ranks itself):

    hvdrun -np 2 -- python benchmarks/allreduce.py
    python benchmarks/allreduce.py --np=4 --mode=core

How to read the table, which rank 0 prints:

- `median` and `min` are over all timed calls of all rounds. `slowest` is the
  median of the rank whose median is highest.
- A call is what a training step pays. With `function` it is one call of a
  `tf.function` that holds one allreduce, including the way into and out of
  TensorFlow. With `chain` it is one allreduce of a `tf.function` that holds 5
  to 100, each of the last one's result, so that they share that way. `core`
  does without TensorFlow.
- `add` is the median with an addition instead of the allreduce, on all ranks
  at once: the cost of TensorFlow and the memory. Mode `core` has none.
- `GB/s` is the bus bandwidth at the median, 2 (n - 1) / n bytes over time. It
  compares different numbers of ranks.
- The rounds go through all sizes in turn, so that other work on the machine
  hits all sizes alike. With more ranks than cores, the figures show how well
  the ranks share the cores, not how fast the collective is.
"""

from __future__ import annotations

import os
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
    "mode",
    "function",
    ["function", "chain", "eager", "core"],
    "How to call.",
)
flags.DEFINE_list(
    "sizes",
    ["4", "64", "1K", "16K", "64K", "256K", "1M", "4M", "16M", "64M"],
    "Bytes of the tensor; K and M are powers of 1024.",
)
flags.DEFINE_integer("rounds", 5, "Rounds through all sizes.", 1)
flags.DEFINE_integer(
    "max_calls", 200, "Most calls of a size in a round; big ones have fewer.", 1
)
flags.DEFINE_integer("warmup", 3, "Calls before each round's timing.", 0)

MAX_BYTES_PER_ROUND = 512 << 20
MIN_CHAIN = 5
MAX_CHAIN = 100
CORE_SUM = 1  # hvd.Sum, which would import TensorFlow

# An allreduce (sum) of a given number of bytes, or what stands in for it. It
# returns when the result is ready.
Call = Callable[[], object]


def parse_size(text: str) -> int:
    """Returns the number of bytes in `text`: `64`, `16K` or `4M`."""
    factor = {"K": 1 << 10, "M": 1 << 20}.get(text[-1].upper())
    num_bytes = int(text[:-1]) * factor if factor else int(text)
    if num_bytes < 4 or num_bytes % 4:
        raise app.UsageError(
            f"--sizes must hold multiples of 4. Received: {text!r}."
        )
    return num_bytes


def make_calls(mode: str, num_bytes: int) -> dict[str, Call]:
    """Returns an allreduce of float32 and, except for `core`, an addition."""
    values = np.full(num_bytes // 4, hvd.rank() + 1, np.float32)
    name = f"benchmark_{num_bytes}"
    if mode == "core":
        from hvd_keras import _core

        return {"allreduce": lambda: _core.allreduce(name, [values], CORE_SUM)}

    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")  # no advice on many functions
    tensor = tf.constant(values)
    one = tf.constant(1.0)  # an argument, so that no sums are folded
    if mode == "eager":
        return {
            "allreduce": lambda: hvd.allreduce(tensor, hvd.Sum, name=name),
            "add": lambda: tensor + one,
        }

    @tf.function
    def reduce(x: tf.Tensor) -> tf.Tensor:
        x = hvd.allreduce(x, hvd.Sum, name=name)
        for i in range(1, chain_length(mode, num_bytes)):
            x = hvd.allreduce(x, hvd.Average, name=f"{name}_{i}")
        return x

    @tf.function
    def add(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        for _ in range(chain_length(mode, num_bytes)):
            x = x + y
        return x

    return {
        "allreduce": lambda: reduce(tensor),
        "add": lambda: add(tensor, one),
    }


def chain_length(mode: str, num_bytes: int) -> int:
    """Returns the number of allreduces in one call."""
    if mode != "chain":
        return 1
    fitting = MAX_BYTES_PER_ROUND // 5 // num_bytes
    return max(MIN_CHAIN, min(MAX_CHAIN, fitting))


def check_call(call: Call) -> None:
    """Fails if the result is not the sum over the ranks."""
    result = call()
    if isinstance(result, list):  # from `_core`
        result = result[0]
    expected = hvd.size() * (hvd.size() + 1) / 2
    np.testing.assert_array_equal(np.asarray(result), expected)


def time_call(call: Call, num_calls: int) -> list[float]:
    """Returns the seconds of each of `num_calls` calls."""
    seconds = []
    for _ in range(FLAGS.warmup):
        call()
    for _ in range(num_calls):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def format_row(
    num_bytes: int, seconds: dict[str, list[float]], slowest: float
) -> str:
    """Returns one line of the table."""
    ours = seconds["allreduce"]
    median = float(np.median(ours))
    bus_bytes = 2 * (hvd.size() - 1) / hvd.size() * num_bytes
    add = f"{np.median(seconds['add']) * 1e3:.4f}" if "add" in seconds else "-"
    return (
        f"{num_bytes:>10} {median * 1e3:>11.4f} {min(ours) * 1e3:>11.4f} "
        f"{slowest * 1e3:>11.4f} {add:>9} {bus_bytes / median / 1e9:>8.2f} "
        f"{len(ours):>7}"
    )


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    sizes = [parse_size(text) for text in FLAGS.sizes]
    _common.start(FLAGS.np)
    calls = {size: make_calls(FLAGS.mode, size) for size in sizes}
    for size in sizes:
        check_call(calls[size]["allreduce"])

    seconds: dict[int, dict[str, list[float]]] = {
        size: {way: [] for way in calls[size]} for size in sizes
    }
    for _ in range(FLAGS.rounds):
        for size in sizes:
            length = chain_length(FLAGS.mode, size)
            num_calls = MAX_BYTES_PER_ROUND // (size * length)
            num_calls = max(3, min(FLAGS.max_calls, num_calls))
            for way, call in calls[size].items():
                _common.wait_for_all()
                seconds[size][way] += [
                    total / length for total in time_call(call, num_calls)
                ]

    medians = [float(np.median(seconds[size]["allreduce"])) for size in sizes]
    slowest = _common.gather_over_ranks(medians).max(axis=0)
    if hvd.rank() == 0:
        figures = [
            _results.figure(
                f"{size} B",
                FLAGS.mode if way == "allreduce" else f"{FLAGS.mode}, {way}",
                seconds[size][way],
            )
            for size in sizes
            for way in seconds[size]
        ]
        _results.write("allreduce", hvd.size(), figures)
        print(f"allreduce, float32, {hvd.size()} ranks, mode {FLAGS.mode}")
        print(
            f"{'bytes':>10} {'median ms':>11} {'min ms':>11} "
            f"{'slowest ms':>11} {'add':>9} {'GB/s':>8} {'calls':>7}"
        )
        for size, worst in zip(sizes, slowest, strict=True):
            print(format_row(size, seconds[size], float(worst)), flush=True)
    hvd.shutdown()


if __name__ == "__main__":
    app.run(main)
