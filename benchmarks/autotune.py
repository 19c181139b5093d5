"""Compares steps after `--autotune` with those of fixed settings.

    python benchmarks/autotune.py --np=2

A step sums --tensors tensors of --kilobytes each in a `tf.function`, an op for
each. Each way of a round begins the job anew: `defaults`; some fixed settings;
`tuned`, from the defaults; `tuned, bad start`, from a fusion threshold of 1 KiB
and a cycle time of 20 ms; and once more `tuned, known`, with what that has
found. `ms` is the median over the rounds of the time of a step, after the
search; `defaults` and `best` are the medians of its ratios to the defaults and
to the quickest way without a search. `steps` is how many steps the search took.
Settings are MiB and ms.

Over two hosts: `sudo python benchmarks/hosts.py --autotune --rate=1gbit`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no start-up remarks
os.environ.setdefault("HVD_LOG_LEVEL", "warning")

import _common
import numpy as np
import tensorflow as tf
from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 2, "Ranks, where no launcher started this.", 1)
flags.DEFINE_integer("tensors", 100, "Tensors of a step.", 1)
flags.DEFINE_integer("kilobytes", 4, "Size of each.", 1)
flags.DEFINE_integer("rounds", 5, "Rounds of all ways.", 1)
flags.DEFINE_integer("steps", 100, "Timed steps of each way in a round.", 1)
MOST_STEPS = 400
FIXED = [(32.0, 0.0), (2.0, 0.0), (0.5, 0.0), (128.0, 1.0), (8.0, 1.0)]


def ways(cache: str) -> dict[str, dict[str, str]]:
    """Returns the settings of each way."""
    found: dict[str, dict[str, str]] = {"defaults": {}}
    for megabytes, milliseconds in FIXED:
        found[f"{megabytes:g}, {milliseconds:g}"] = {
            "HVD_FUSION_THRESHOLD": str(int(megabytes * (1 << 20))),
            "HVD_CYCLE_TIME": str(milliseconds),
        }
    tuned = {"HVD_AUTOTUNE": "1", "HVD_AUTOTUNE_CACHE": "none"}
    bad = {**tuned, "HVD_AUTOTUNE_START": "1024,20"}
    found["tuned"] = tuned
    found["tuned, bad start"] = {**bad, "HVD_AUTOTUNE_CACHE": cache}
    found["tuned, known"] = found["tuned, bad start"]
    return found


@tf.function
def step(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    return [
        hvd.allreduce(tensor, name=f"tune/bucket_{i}")
        for i, tensor in enumerate(tensors)
    ]


def search(tensors: list[tf.Tensor]) -> int:
    """Makes steps until the search has ended; returns how many it took."""
    from hvd_keras import _core

    for number in range(MOST_STEPS):
        step(tensors)
        if number % 10 == 9:
            report = _core.tuning_report() if hvd.rank() == 0 else None
            is_over = report is not None and report["state"] == "done"
            if _common.gather_over_ranks([float(is_over)])[0, 0]:
                return number + 1
    return MOST_STEPS


def measure(settings: dict[str, str], tensors: list[tf.Tensor]) -> list[float]:
    """Returns the seconds of a step, and the steps of the search."""
    os.environ.update(settings)
    hvd.init()
    for _ in range(10):
        step(tensors)
    num_steps = search(tensors) if "HVD_AUTOTUNE" in settings else 0
    _common.wait_for_all()
    times = []
    for _ in range(FLAGS.steps):
        begin = time.perf_counter()
        step(tensors)
        times.append(time.perf_counter() - begin)
    slowest = float(_common.gather_over_ranks([float(np.median(times))]).max())
    hvd.shutdown()
    for name in settings:
        del os.environ[name]
    return [slowest, num_steps]


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    _common.start(FLAGS.np)
    rank = hvd.rank()
    hvd.shutdown()
    rows = FLAGS.kilobytes * 256
    tensors = [tf.ones(rows) for _ in range(FLAGS.tensors)]
    figures = []
    for _ in range(FLAGS.rounds):
        with tempfile.TemporaryDirectory() as cache:
            of_ways = ways(cache)
            figures.append([measure(way, tensors) for way in of_ways.values()])
    if rank != 0:
        return
    seconds = np.array(figures)[:, :, 0]
    num_fixed = 1 + len(FIXED)
    best = np.median(seconds[:, :num_fixed], axis=0).argmin()
    print(f"{'way':>17} {'ms':>8} {'defaults':>8} {'best':>6} {'steps':>5}")
    for i, way in enumerate(of_ways):
        to_defaults, to_best = (
            np.median(seconds[:, i] / seconds[:, k]) for k in (0, best)
        )
        ms = 1e3 * np.median(seconds[:, i])
        num_steps = np.median(np.array(figures)[:, i, 1])
        print(
            f"{way:>17} {ms:8.3f} {to_defaults:8.3f} {to_best:6.3f} "
            f"{num_steps:5.0f}"
        )


if __name__ == "__main__":
    app.run(main)
