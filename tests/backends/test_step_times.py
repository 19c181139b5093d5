"""The timeline holds the steps of `fit` on JAX and torch."""

from __future__ import annotations

import pathlib

import keras
import pytest
import small_training as small

import hvd_keras as hvd
from hvd_keras._keras import epochs
from hvd_keras._observe import recording


def test_steps_of_fit_are_in_the_timeline(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / str(hvd.rank())
    model = small.model()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    data = small.shares(*small.data(2 * small.BATCH))
    hvd.start_timeline(folder)
    model.fit(data, epochs=2, verbose=0)
    hvd.stop_timeline()
    model.fit(data, verbose=0)
    # After a second `init()` it is in a folder of that epoch.
    (file,) = folder.rglob("*.hvdtrace")
    (rank,) = recording.read(file.parent).ranks
    assert rank.settings["backend"] == keras.backend.backend()
    assert rank.steps["step"].tolist() == [1, 2, 3, 4]
    assert rank.steps["epoch"].tolist() == [0, 0, 1, 1]
    assert (rank.steps["begin_ns"] < rank.steps["end_ns"]).all()
    assert any("DistributedOptimizer" in name for name in rank.names)


def test_batches_are_told_with_their_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Keras looks at a batch before the first epoch where metrics are new.
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(epochs, "_tell_batch", lambda *at: told.append(at))
    model = small.model()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model.compile(optimizer, "mse", metrics=["mae"])
    data = small.shares(*small.data(2 * small.BATCH))
    for _ in range(2):
        told.clear()
        model.fit(data, epochs=4, initial_epoch=2, verbose=0)
        if told[0] == told[1]:
            told.pop(0)  # that look
        assert told == [(3, 1), (3, 2), (4, 1), (4, 2), (0, 0)]
