"""The logs have what communication costs, and who is late."""

from __future__ import annotations

import csv
import logging
import time
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras.callbacks import CommunicationLogger
from hvd_keras.callbacks.communication_logger import describe_straggler

pytestmark = pytest.mark.thorough(1, 4)

SLEEP = 0.03


class SlowLastRank(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None) -> None:
        time.sleep(SLEEP if hvd.rank() == hvd.size() - 1 else 0.0)


def fit(*callbacks: Any, epochs: int = 2) -> dict[str, float]:
    model = kt.build(kt.functional_model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    history = model.fit(
        kt.shares(*kt.regression_data()),
        epochs=epochs,
        verbose=0,
        callbacks=[*callbacks],
    ).history
    return {key: values[-1] for key, values in history.items()}


def test_the_logs_tell_who_is_late_and_what_it_costs(tmp_path: Any) -> None:
    path = tmp_path / "log.csv"
    logs = fit(
        CommunicationLogger(),
        SlowLastRank(),
        keras.callbacks.CSVLogger(path),
    )
    found = {key: x for key, x in logs.items() if key.startswith("hvd/")}
    assert len(set(map(str, hvd.allgather_object(found)))) == 1
    if hvd.size() == 1:
        assert found["hvd/straggler_rank"] == -1
        return
    assert found["hvd/straggler_rank"] == hvd.size() - 1
    assert 0.5e3 * SLEEP < found["hvd/wait_ms"] < 10e3 * SLEEP
    assert 0.0 < found["hvd/allreduce_ms"] < found["hvd/wait_ms"]
    assert found["hvd/megabytes_per_s"] > 0.0
    assert 0.0 < found["hvd/efficiency"] < 1.0
    if hvd.rank() == 0:
        with path.open() as file:
            last = list(csv.DictReader(file))[-1]
        for key, value in found.items():
            assert float(last[key]) == value


def test_rank_0_warns_of_a_late_rank(caplog: Any) -> None:
    logging.getLogger("hvd_keras").propagate = True
    try:
        # Several reports, of enough collectives that other work does not count.
        callbacks = CommunicationLogger(report_seconds=0.6), SlowLastRank()
        fit(*callbacks, epochs=8)
    finally:
        logging.getLogger("hvd_keras").propagate = False
    lines = [r.message for r in caplog.records if "came last" in r.message]
    if hvd.rank() > 0 or hvd.size() == 1:
        assert not lines
    else:
        assert f": rank {hvd.size() - 1} came last to " in lines[-1]


def test_tensorboard_shows_the_values(tmp_path: Any) -> None:
    from tensorboard.backend.event_processing import event_accumulator

    fit(CommunicationLogger(), keras.callbacks.TensorBoard(tmp_path))
    hvd.barrier()
    (folder,) = {p.parent for p in tmp_path.rglob("*tfevents*")}
    events = event_accumulator.EventAccumulator(str(folder))
    events.Reload()
    assert "epoch_hvd/wait_ms" in events.Tags()["tensors"]
    assert len(events.Tensors("epoch_hvd/efficiency")) == 2


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[10, 10**9], [90, 9 * 10**9]], "rank 1 came last to 90% of the 100"),
        ([[50, 10**9], [49, 10**9]], "rank 0"),
        ([[30, 10**9], [40, 9 * 10**9], [30, 10**9]], ""),  # not in most
        ([[10, 0], [90, 10**9]], ""),  # for 1 % of the time
        ([[0, 0], [0, 0]], ""),
    ],
)
def test_only_a_rank_that_costs_time_is_named(
    rows: list[list[int]], expected: str
) -> None:
    seconds = 10.0 if expected.startswith("rank 0") else 100.0
    text = describe_straggler(np.array(rows), seconds)
    assert text.startswith(expected) if expected else text == ""


def test_negative_seconds_are_refused() -> None:
    with pytest.raises(ValueError, match="report_seconds=-1"):
        CommunicationLogger(report_seconds=-1)
