"""Times `model.fit` of a small CNN on one rank and on all, in turns.

    python benchmarks/fit.py --np=2

Every rank trains on its own batches of --batch images, so each rank always has
the same work. Rank 0 prints, as a JSON line:

- `one_rank`: images/s of a rank that trains alone with the plain optimizer. The
  others do the same at the time: they share the machine's memory and caches as
  when they train together, but no rank waits for another.
- `all_ranks`: images/s of all ranks together, with the distributed optimizer.
- `efficiency`: `all_ranks / (ranks * one_rank)` within a round, the median over
  the rounds. It would be 1.0 if reducing gradients cost nothing.
- `asking_ms`: milliseconds that a step takes longer when the batches do not say
  how many rows they have, so that the ranks ask each other in each step. The
  median over the rounds.

Both have the number of threads that `hvdrun` gives each rank.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import Any

import _common
import _results
import numpy as np
from absl import app, flags

import hvd_keras as hvd

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no start-up remarks

FLAGS = flags.FLAGS
flags.DEFINE_integer("np", 2, "Ranks, where no launcher started this.", 1)
flags.DEFINE_integer("batch", 64, "Images a rank has in a batch.", 1)
flags.DEFINE_integer("steps", 60, "Batches in a timed epoch.", 1)
flags.DEFINE_integer("rounds", 8, "Timed epochs of each way.", 1)

IMAGE = (28, 28, 1)
NUM_CLASSES = 10


def make_model(is_distributed: bool, compression: str = "none") -> Any:
    import keras

    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input(IMAGE),
            layers.Conv2D(32, 3, activation="relu"),
            layers.Conv2D(64, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(NUM_CLASSES, activation="softmax"),
        ]
    )
    optimizer = keras.optimizers.Adam(1e-3)
    if is_distributed:
        optimizer = hvd.DistributedOptimizer(
            optimizer, compression=getattr(hvd.Compression, compression)
        )
    model.compile(optimizer, "sparse_categorical_crossentropy")
    return model


def make_data(has_rows: bool) -> Any:
    """Returns the batches of an epoch, in memory, with tf.data untuned.

    Args:
        has_rows: Whether their shapes say how many rows they have.
    """
    import tensorflow as tf

    generator = np.random.default_rng(hvd.rank())
    num_images = FLAGS.batch * FLAGS.steps
    x = generator.random((num_images, *IMAGE), np.float32)
    y = generator.integers(0, NUM_CLASSES, num_images)
    data = tf.data.Dataset.from_tensor_slices((x, y))
    data = data.batch(FLAGS.batch, drop_remainder=has_rows)
    return _common.untuned(data.cache().prefetch(2))


def main(argv: Sequence[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Flags only. Received: {argv[1:]}.")
    _common.start(FLAGS.np)
    models = {
        "one_rank": make_model(is_distributed=False),
        "all_ranks": make_model(is_distributed=True),
        "asking": make_model(is_distributed=True),
    }
    data = {way: make_data(has_rows=way != "asking") for way in models}
    rates: dict[str, list[float]] = {way: [] for way in models}
    for round_number in range(FLAGS.rounds + 1):
        for way, model in models.items():
            _common.wait_for_all()
            start = time.perf_counter()
            model.fit(data[way], verbose=0)
            seconds = time.perf_counter() - start
            if round_number > 0:  # the first round traces
                rates[way].append(FLAGS.batch * FLAGS.steps / seconds)

    # The mean of ranks that train alone; the slowest of ranks that wait.
    alone = _common.gather_over_ranks(rates["one_rank"]).mean(axis=0)
    together = _common.gather_over_ranks(rates["all_ranks"]).min(axis=0)
    asking = _common.gather_over_ranks(rates["asking"]).min(axis=0)
    if hvd.rank() == 0:
        figures = {
            "ranks": hvd.size(),
            "batch": FLAGS.batch,
            "parameters": int(models["one_rank"].count_params()),
            "one_rank": round(float(np.median(alone)), 1),
            "all_ranks": round(float(np.median(together)) * hvd.size(), 1),
            "asking_ms": round(
                1e3 * FLAGS.batch * float(np.median(1 / asking - 1 / together)),
                3,
            ),
            "efficiency": round(float(np.median(together / alone)), 3),
            "rounds": [round(float(r), 3) for r in together / alone],
        }
        print(json.dumps(figures))
        num_images = FLAGS.batch * FLAGS.steps
        _results.write(
            "fit",
            hvd.size(),
            [
                _results.figure(
                    f"epoch of {num_images} images a rank",
                    way,
                    num_images / speeds,
                )
                for way, speeds in (
                    ("alone", alone),
                    ("together", together),
                )
            ],
        )
    hvd.shutdown()


if __name__ == "__main__":
    app.run(main)
