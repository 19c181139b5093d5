"""The logs have the speed of all ranks."""

from __future__ import annotations

import csv
import time
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    ThroughputCallback,
)

pytestmark = pytest.mark.thorough(1, 4)


class SlowLastRank(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None) -> None:
        time.sleep(0.03 if hvd.rank() == hvd.size() - 1 else 0.0)


class Timed(keras.callbacks.Callback):
    """Measures the same time from outside."""

    def on_train_batch_begin(self, batch, logs=None) -> None:
        if batch == 0:
            self.began = time.perf_counter()

    def on_test_begin(self, logs=None) -> None:
        self.seconds = time.perf_counter() - self.began


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_speed_is_that_of_all_ranks(
    steps_per_execution: int, tmp_path: Any
) -> None:
    model = kt.build(kt.functional_model)
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)),
        "mse",
        steps_per_execution=steps_per_execution,
    )
    x, y = kt.regression_data()
    timed = Timed()
    history = model.fit(
        kt.shares(x, y),
        epochs=2,
        verbose=0,
        validation_data=(x, y),  # validation does not count
        callbacks=[
            timed,
            BroadcastGlobalVariablesCallback(),
            MetricAverageCallback(),
            ThroughputCallback(),
            SlowLastRank(),
            keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        ],
    ).history
    logs = {key: values[-1] for key, values in history.items()}
    assert len(set(hvd.allgather_object(logs["samples_per_second"]))) == 1
    seconds = max(hvd.allgather_object(timed.seconds))
    assert logs["samples_per_second"] == pytest.approx(
        len(x) / seconds, rel=0.2
    )
    assert logs["step_ms"] == pytest.approx(
        1e3 * seconds / kt.NUM_BATCHES, rel=0.2
    )
    assert 0.0 <= logs["step_spread_ms"] <= logs["step_ms"]
    if hvd.size() > 1:
        # One bucket of 41 weights in float32, the rows of a batch, whose number
        # the shapes do not tell, and what an epoch exchanges in the end.
        assert 2.0 <= logs["collectives_per_step"] < 3.5
        # The other ranks wait for the last one.
        assert 5.0 < logs["collectives_ms"] <= logs["step_ms"]
        assert 1e-6 * 41 * 4 <= logs["reduced_mb_per_step"] < 1e-3
    with (tmp_path / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert float(rows[-1]["step_ms"]) == logs["step_ms"]


def test_a_custom_step_logs_no_samples_per_second() -> None:
    model = kt.build(kt.custom_step_model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    history = model.fit(
        kt.shares(*kt.regression_data()).filter(lambda x, y: True),
        verbose=0,
        callbacks=[ThroughputCallback()],
    ).history
    assert "samples_per_second" not in history
    assert np.isfinite(history["step_ms"]).all()
