"""What the benchmarks share: starting ranks and gathering their values."""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

import hvd_keras as hvd


def start(num_ranks: int) -> None:
    """Joins the job. Without a launcher, starts `num_ranks` of this script."""
    if num_ranks > 1 and "HVD_SIZE" not in os.environ:
        launch = [sys.executable, "-m", "hvd_keras.run", "-np", str(num_ranks)]
        command = [sys.executable, *sys.argv]
        os.execv(sys.executable, [*launch, "--", *command])
    hvd.init()


def gather_over_ranks(values: list[float]) -> np.ndarray:
    """Returns the values of all ranks, one row for each rank."""
    from hvd_keras import _core

    row = np.array([values], np.float64)
    return np.asarray(_core.allgather("benchmark_result", [row])[0])


def wait_for_all() -> None:
    """Returns when every rank has called it."""
    gather_over_ranks([0.0])


def untuned(data: Any) -> Any:
    """Returns the `tf.data.Dataset` without TensorFlow's tuner.

    Where an iterator ends, it waits for the tuner's nap to end, which may be as
    long as the epoch was.
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    return data.with_options(options)
