"""Forecasts a time series by an LSTM, from windows of its past.

    hvdrun -np 2 python examples/time_series.py

The series is made here: two periods, a trend and noise. Windows are cut by the
numbers of their first steps; the last fifth of the time is for the test. Any
backend (`KERAS_BACKEND`).
"""

from __future__ import annotations

import job
import keras
import numpy as np
from absl import app, flags

import hvd_keras as hvd

FLAGS = flags.FLAGS
job.define_flags(epochs=6, batch_size=64)

STEPS, WINDOW, AHEAD = 3000, 48, 6


def make_series() -> np.ndarray:
    time = np.arange(STEPS)
    noise = np.random.default_rng(0).normal(0, 0.1, STEPS)
    daily, weekly = (
        np.sin(time * 2 * np.pi / 24),
        np.sin(time * 2 * np.pi / 168),
    )
    return (daily + 0.5 * weekly + time / STEPS + noise).astype(np.float32)


def windows(series: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns windows of the past, and the value that comes `AHEAD` later."""
    views = np.lib.stride_tricks.sliding_window_view(series, WINDOW + AHEAD)
    return views[:, :WINDOW, None], views[:, -1:]


def main(_: list[str]) -> None:
    hvd.init()
    keras.utils.set_random_seed(1)
    series = make_series()
    train, test = windows(series[:2400]), windows(series[2400:])
    model = keras.Sequential(
        [
            keras.Input((WINDOW, 1)),
            keras.layers.LSTM(16),
            keras.layers.Dense(1),
        ]
    )
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(5e-3)), "mse")
    model.fit(
        hvd.shard(train, batch_size=job.batch_size_of_rank(), shuffle=True),
        epochs=FLAGS.epochs,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            hvd.callbacks.MetricAverageCallback(),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )
    forecast = hvd.predict(model, test[0], batch_size=64, verbose=0)
    error = np.abs(forecast - test[1]).mean()
    naive = np.abs(test[0][:, -1] - test[1]).mean()  # as it is now
    job.say(f"test error {error:.3f}; {naive:.3f} if nothing changed")


if __name__ == "__main__":
    app.run(main)
