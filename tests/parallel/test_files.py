"""Keras's callbacks that write files, and `save`, on all ranks at one path."""

from __future__ import annotations

import csv
import json
import os
import pathlib
import time
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras._common import log, owners
from hvd_keras._gradients import rank_files
from hvd_keras.callbacks import _background
from hvd_keras.callbacks._background import claim

pytestmark = pytest.mark.thorough(1, 4)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """The same folder on all ranks."""
    return pathlib.Path(hvd.broadcast_object(str(tmp_path)))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found: list[str] = []
    monkeypatch.setattr(log, "info", found.append)
    monkeypatch.setattr(rank_files, "_told", set())
    return found


def compiled() -> keras.Model:
    model = kt.build(kt.functional_model)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1))
    model.compile(optimizer, "mse")
    return model


def fit(*callbacks: Any, epochs: int = 3) -> keras.Model:
    model = compiled()
    model.fit(
        kt.shares(*kt.regression_data()),
        epochs=epochs,
        verbose=0,
        callbacks=list(callbacks),
    )
    hvd.barrier()
    return model


def test_checkpoints_are_whole(folder: pathlib.Path, lines: list[str]) -> None:
    whole = str(folder / "model.keras")
    weights = str(folder / "{epoch}.weights.h5")
    callbacks = [
        keras.callbacks.ModelCheckpoint(whole, "loss", save_best_only=True),
        keras.callbacks.ModelCheckpoint(weights, save_weights_only=True),
    ]
    model = fit(*callbacks)
    assert sorted(os.listdir(folder)) == [
        *(f"{epoch}.weights.h5" for epoch in (1, 2, 3)),
        "model.keras",
    ]
    keras.models.load_model(whole)
    other = compiled()
    other.load_weights(folder / "3.weights.h5")
    kt.assert_close(other.get_weights(), model.get_weights(), 0.0)
    assert np.isfinite(callbacks[0].best)
    is_told = hvd.rank() == 0 and hvd.size() > 1
    assert len(lines) == is_told
    assert all("hvd.callbacks.ModelCheckpoint" in line for line in lines)


def test_a_path_of_the_rank_is_left_alone(
    folder: pathlib.Path, lines: list[str]
) -> None:
    path = folder / f"{hvd.rank()}.keras"
    fit(keras.callbacks.ModelCheckpoint(path), epochs=1)
    assert len(os.listdir(folder)) == hvd.size()
    assert not lines


def test_one_rank_logs(folder: pathlib.Path, lines: list[str]) -> None:
    path = folder / "log.csv"
    logs = keras.callbacks.CSVLogger(path)
    board = keras.callbacks.TensorBoard(folder / "board", write_graph=True)
    fit(logs, board)
    with path.open() as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == list("012")
    assert len(os.listdir(folder / "board" / "train")) == 1
    others = [f"rank_{rank}" for rank in range(1, hvd.size())]
    assert sorted(os.listdir(folder / "board")) == [*others, "train"]
    assert len(lines) == (hvd.rank() == 0 and hvd.size() > 1)


def test_a_backup_of_keras_resumes(folder: pathlib.Path) -> None:
    class Stop(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2:
                raise InterruptedError

    expected = fit()
    path = str(folder / "backup")
    with pytest.raises(InterruptedError):
        fit(keras.callbacks.BackupAndRestore(path), Stop())
    hvd.barrier()
    model = fit(keras.callbacks.BackupAndRestore(path))
    assert model.history.epoch == [2]
    kt.assert_equal_on_all_ranks(model.get_weights())
    kt.assert_close(model.get_weights(), expected.get_weights(), 1e-6)
    assert not os.path.exists(path)


def test_saving_on_all_ranks_leaves_whole_files(folder: pathlib.Path) -> None:
    model = fit(epochs=1)
    for turn in range(5):
        hvd.barrier()
        model.save(folder / f"{turn}.keras")
        model.save_weights(folder / f"{turn}.weights.h5")
    hvd.barrier()
    assert len(os.listdir(folder)) == 2 * 5
    for turn in range(5):
        loaded = keras.models.load_model(folder / f"{turn}.keras")
        kt.assert_close(loaded.get_weights(), model.get_weights(), 0.0)
        loaded.load_weights(folder / f"{turn}.weights.h5")


def owner_of(path: str) -> dict[str, Any]:
    folder, name = os.path.split(path)
    owner: dict[str, Any] = json.loads(
        pathlib.Path(folder, f".{name}.owner").read_text()
    )
    return owner


def test_a_living_rank_hands_its_file_over(folder: pathlib.Path) -> None:
    """As when another rank becomes rank 0."""
    path, last = str(folder / "state"), hvd.size() - 1
    if hvd.rank() == last:
        owners.claim(path)
    hvd.barrier()
    began = time.monotonic()
    claim("test", path)
    assert time.monotonic() - began < 5
    pid = hvd.broadcast_object(os.getpid())
    assert owner_of(path)["pid"] == pid
    hvd.barrier()
    if hvd.rank() == last and last > 0:  # it is told if it writes on
        with pytest.raises(hvd.FileInUseError, match=f"pid {pid},"):
            owners.claim(path)
    hvd.barrier()
    owners.release(path)


def test_survivors_know_who_wrote_on_a_lost_host(folder: pathlib.Path) -> None:
    path = str(folder / "state")
    claim("test", path)
    if hvd.rank() == 0:  # as if it had been a process of another host
        lost = {**owner_of(path), "kernel": "0" * 8}
        pathlib.Path(folder, ".state.owner").write_text(json.dumps(lost))
        name = f"{'0' * 8}-{lost['pid']}-{lost['start_ticks']}"
    else:
        name = ""
    name = hvd.broadcast_object(name)
    if hvd.rank() == hvd.size() - 1:
        _background._known[path] = name
    began = time.monotonic()
    claim("test", path)
    assert time.monotonic() - began < 5
    hvd.barrier()
    owners.release(path)
