"""The test job of `hvdrun --check --train`: seconds, on any backend.

A small `fit` on all ranks, the same steps in this one process, and allreduces.
"""

from __future__ import annotations

import sys
import time

import keras
import numpy as np

import hvd_keras as hvd
from hvd_keras import _native

_NUM_STEPS = 20
_ROWS = 8  # of a rank, in a step
_MAX_DIFFERENCE = 1e-4  # relative; rounding makes 1e-6
_NUM_ELEMENTS = 8 << 20  # of the allreduce, float32
_NUM_ALLREDUCES = 5


def main() -> int:
    """Runs on each rank; rank 0 prints.

    Returns:
        The exit status: 1 if the ranks do not train as one process.
    """
    hvd.init()
    size = hvd.size()
    rows = np.random.default_rng(0)
    x = rows.normal(size=(_NUM_STEPS * _ROWS * size, 16)).astype(np.float32)
    y = np.tanh(x[:, :4])
    begin = time.monotonic()
    model = _model(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    model.fit(
        hvd.shard((x, y), batch_size=_ROWS),
        shuffle=False,
        verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
    )
    seconds = time.monotonic() - begin
    _say(
        "fit",
        f"{_NUM_STEPS} steps on {size} ranks with {keras.backend.backend()}, "
        f"{seconds:.1f} s with compiling",
    )

    alone = _model(keras.optimizers.Adam(0.01))
    for at in range(0, len(x), _ROWS * size):
        step = slice(at, at + _ROWS * size)
        alone.train_on_batch(x[step], y[step])
    difference = max(
        float(np.abs(ours - theirs).max() / np.abs(theirs).max())
        for ours, theirs in zip(
            model.get_weights(), alone.get_weights(), strict=True
        )
    )
    differences = hvd.allgather_object(difference)
    worst = max(differences)
    is_equal = worst <= _MAX_DIFFERENCE
    verdict = "equal" if is_equal else "NOT EQUAL"
    _say("one process", f"{verdict}: weights differ by {worst:.1e} of them")

    seconds = min(_timed_allreduce() for _ in range(_NUM_ALLREDUCES))
    num_bytes = 4 * _NUM_ELEMENTS
    _say(
        "allreduce",
        f"{num_bytes >> 20} MiB of host memory in {1000 * seconds:.1f} ms: "
        f"{num_bytes / seconds / 1e9:.2f} GB/s",
    )
    if is_equal:
        _say("", f"{size} ranks train here as one process does.")
    hvd.shutdown()
    return 0 if is_equal else 1


def _model(optimizer: keras.optimizers.Optimizer) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((16,)),
            keras.layers.Dense(32, activation="tanh", dtype="float32"),
            keras.layers.Dense(4, dtype="float32"),
        ]
    )
    model.compile(optimizer, "mse")
    return model


def _timed_allreduce() -> float:
    values = np.ones(_NUM_ELEMENTS, np.float32)
    hvd.allgather_object(None)  # all begin at once
    begin = time.monotonic()
    _native.core().allreduce("hvdrun/check", [values], 1)
    return time.monotonic() - begin


def _say(name: str, text: str) -> None:
    if hvd.rank() == 0:
        print(f"{name:<15} {text}".strip(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
