"""Rank 0 writes files for all ranks, and a run resumes where it was."""

from __future__ import annotations

import functools
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras.callbacks import (
    BackupAndRestore,
    BestModelCheckpoint,
    BroadcastGlobalVariablesCallback,
    LearningRateWarmupCallback,
    MetricAverageCallback,
    ModelCheckpoint,
    _training_state,
)
from hvd_keras.callbacks._background import wait_for_all

pytestmark = pytest.mark.thorough(1, 4)
THOROUGH = pytest.mark.thorough

needs_peers = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")


@pytest.fixture
def path(tmp_path_factory: Any) -> pathlib.Path:
    """Gives all ranks the same directory."""
    own = str(tmp_path_factory.mktemp("shared"))
    return pathlib.Path(hvd.broadcast_object(own))


def compiled() -> keras.Model:
    model = kt.build(kt.functional_model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
    return model


class Written(keras.callbacks.Callback):
    """Notes which files a rank sees after training."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__()
        self._path = path
        self.names: list[str] = []

    def on_train_end(self, logs=None) -> None:
        self.names = sorted(os.listdir(self._path))


@pytest.mark.thorough(4)
@pytest.mark.parametrize("name", ["{epoch}.keras", "{epoch}.weights.h5"])
def test_rank_0_saves_for_all(path: pathlib.Path, name: str) -> None:
    model, seen = compiled(), Written(path)
    save = ModelCheckpoint(
        path / name, save_weights_only=name.endswith("weights.h5")
    )
    saved_by = []
    for method in ("save", "save_weights"):
        original = getattr(model, method)

        def write(*args, original=original, **options) -> None:
            saved_by.append(hvd.rank())
            original(*args, **options)

        model.__dict__[method] = write
    model.fit(
        kt.shares(*kt.regression_data()),
        epochs=2,
        verbose=0,
        callbacks=[BroadcastGlobalVariablesCallback(), save, seen],
    )
    assert saved_by == ([0, 0] if hvd.rank() == 0 else [])
    assert seen.names == [name.format(epoch=1), name.format(epoch=2)]
    loaded = compiled()
    if name.endswith("weights.h5"):
        loaded.load_weights(path / name.format(epoch=2))
    else:
        loaded = hvd.load_model(path / name.format(epoch=2))
    for ours, theirs in zip(
        model.get_weights(), loaded.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_the_best_model_is_the_best_of_all_ranks(path: pathlib.Path) -> None:
    x, y = kt.regression_data()
    rows = kt.uneven_share(len(x))
    model = compiled()
    best = BestModelCheckpoint(save_freq="epoch")
    best.filepath = str(path / "best.keras")
    history = model.fit(
        kt.shares(x, y),
        epochs=3,
        verbose=0,
        validation_data=(x[rows], y[rows]),
        callbacks=[MetricAverageCallback(), best],
    )
    lowest = min(history.history["val_loss"])
    assert best.best == pytest.approx(lowest)
    loaded = hvd.load_model(best.filepath)
    value = loaded.evaluate(x, y, verbose=0)
    assert value == pytest.approx(lowest, rel=1e-5)


def test_a_best_model_without_a_path_is_an_error() -> None:
    with pytest.raises(ValueError, match="filepath"):
        compiled().fit(
            kt.shares(*kt.regression_data()),
            verbose=0,
            callbacks=[BestModelCheckpoint()],
        )


def test_a_file_that_cannot_be_written_is_an_error_on_all_ranks(
    path: pathlib.Path,
) -> None:
    (path / "file").write_text("in the way")
    expected = OSError if hvd.rank() == 0 else hvd.HvdError
    with pytest.raises(expected):
        compiled().fit(
            kt.shares(*kt.regression_data()),
            verbose=0,
            callbacks=[ModelCheckpoint(path / "file" / "m.keras")],
        )


def test_a_save_that_fails_leaves_the_last_file(path: pathlib.Path) -> None:
    model = compiled()
    original = model.save

    def save(filepath: str, **options: Any) -> None:
        if pathlib.Path(path / "m.keras").exists():
            pathlib.Path(filepath).write_text("half of a")
            raise OSError("the disk is full")
        original(filepath, **options)

    model.__dict__["save"] = save
    with pytest.raises(hvd.HvdError if hvd.rank() else OSError, match="full"):
        model.fit(
            kt.shares(*kt.regression_data()),
            verbose=0,
            epochs=2,
            callbacks=[ModelCheckpoint(path / "m.keras")],
        )
    hvd.barrier()
    assert os.listdir(path) == ["m.keras"]
    assert hvd.load_model(path / "m.keras").optimizer.iterations.numpy() == 8


@pytest.mark.thorough(4)
def test_training_goes_on_while_a_model_is_written(path: pathlib.Path) -> None:
    model = compiled()
    original, times, weights = model.save, {}, {}

    def save(filepath: str, **options: Any) -> None:
        time.sleep(0.5)
        times.setdefault("written", time.monotonic())
        original(filepath, **options)

    class Times(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            times[epoch] = time.monotonic()
            weights[epoch] = self.model.get_weights()

    model.__dict__["save"] = save
    model.fit(
        kt.shares(*kt.regression_data()),
        epochs=2,
        verbose=0,
        callbacks=[ModelCheckpoint(path / "{epoch}.keras"), Times()],
    )
    if hvd.rank() == 0:
        assert times[1] < times["written"]
    # It holds the weights of the moment of the save.
    loaded = hvd.load_model(path / "1.keras")
    for ours, theirs in zip(weights[1], loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_backup_that_cannot_be_written_is_an_error_on_all_ranks(
    path: pathlib.Path,
) -> None:
    (path / "file").write_text("in the way")
    backup = BackupAndRestore(path / "file" / "backup", save_freq=1)
    with pytest.raises(OSError if hvd.rank() == 0 else hvd.HvdError):
        compiled().fit(
            kt.shares(*kt.regression_data()), verbose=0, callbacks=[backup]
        )


@pytest.mark.thorough
@needs_peers
def test_a_save_may_take_longer_than_a_stall(
    path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hvd.shutdown()
    monkeypatch.setenv("HVD_STALL_CHECK_TIME_SECONDS", "0")
    monkeypatch.setenv("HVD_STALL_SHUTDOWN_TIME_SECONDS", "2")
    hvd.init()
    model = compiled()
    original = model.save

    def save(filepath: str, **options: Any) -> None:
        time.sleep(4)
        original(filepath, **options)

    model.__dict__["save"] = save
    try:
        model.fit(
            kt.shares(*kt.regression_data()),
            verbose=0,
            callbacks=[ModelCheckpoint(path / "m.keras")],
        )
    finally:
        monkeypatch.undo()
        hvd.shutdown()
        hvd.init()
    assert (path / "m.keras").exists()


def drawing_model() -> keras.Model:
    """Returns a model whose seeds and moving statistics differ by rank."""
    inputs = keras.Input((kt.NUM_FEATURES,))
    hidden = keras.layers.BatchNormalization()(inputs)
    hidden = keras.layers.Dropout(0.3, seed=3)(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


class Interrupt(keras.callbacks.Callback):
    """Raises in the middle of a run and counts its epochs."""

    def __init__(self, at: tuple[int, int]) -> None:
        super().__init__()
        self._at = at
        self._epoch = 0
        self.num_epochs = 0

    def on_epoch_begin(self, epoch, logs=None) -> None:
        self._epoch = epoch
        self.num_epochs += 1

    def on_train_batch_begin(self, batch, logs=None) -> None:
        if (self._epoch, batch) == self._at:
            raise InterruptedError


class Plateau(keras.callbacks.Callback):
    """Changes the rate at the end of an epoch, after our callbacks."""

    def on_epoch_end(self, epoch, logs=None) -> None:
        rate = float(self.model.optimizer.learning_rate.numpy())
        self.model.optimizer.learning_rate = rate * 0.75


def train(
    path: pathlib.Path | None,
    interrupt_at: tuple[int, int] = (-1, -1),
    *,
    is_first: bool = True,
    share: Callable[..., Any] = kt.shares,
    **options: Any,
) -> tuple[list[np.ndarray], dict, int]:
    """Returns all variables, the history and the number of epochs begun."""
    model = kt.build(drawing_model)
    model.compile(
        hvd.DistributedOptimizer(
            keras.optimizers.SGD(0.05, momentum=0.9), backward_passes_per_step=3
        ),
        "mse",
        metrics=["mae"],
    )
    interrupt = Interrupt(interrupt_at)
    ours: list[Any] = [
        BroadcastGlobalVariablesCallback(),
        MetricAverageCallback(),
        LearningRateWarmupCallback(0.05, 2, steps_per_epoch=kt.NUM_BATCHES),
    ]
    backup = [BackupAndRestore(path, **options)] if path else []
    x, y = kt.regression_data()
    callbacks = [*backup, *ours] if is_first else [*ours, *backup]
    arguments: dict[str, Any] = {
        "epochs": 4,
        "verbose": 0,
        "callbacks": [*callbacks, Plateau(), interrupt],
    }
    if interrupt_at != (-1, -1):
        with pytest.raises(InterruptedError):
            model.fit(share(x, y), **arguments)
        history = {}
    else:
        history = model.fit(share(x, y), **arguments).history
    variables = [*model.variables, *model.optimizer.variables]
    values = [np.asarray(variable.numpy()) for variable in variables]
    return values, history, interrupt.num_epochs


@functools.cache
def undisturbed() -> tuple[list[np.ndarray], dict, int]:
    return train(None)


@pytest.mark.thorough(4)
@pytest.mark.parametrize(
    ("interrupt_at", "save_freq", "num_epochs", "options"),
    [
        ((2, 5), "epoch", 2, {"is_first": True}),
        pytest.param((2, 5), 5, 2, {"is_first": False}, marks=THOROUGH),
        # At the end of an epoch.
        pytest.param((1, 0), 8, 4, {"is_first": False}, marks=THOROUGH),
    ],
)
@pytest.mark.filterwarnings("ignore:.*ran out of data")
def test_a_resumed_run_ends_with_the_same_weights(
    path: pathlib.Path,
    interrupt_at: tuple[int, int],
    save_freq: str | int,
    num_epochs: int,
    options: dict[str, Any],
) -> None:
    expected, whole, _ = undisturbed()
    train(path, interrupt_at, save_freq=save_freq, **options)
    wait_for_all()
    assert (path / "training_state.npz").exists()
    values, history, num_begun = train(path, save_freq=save_freq, **options)
    assert num_begun == num_epochs
    for value, wanted in zip(values, expected, strict=True):
        assert value.tobytes() == wanted.tobytes()
    for key, numbers in history.items():
        np.testing.assert_array_equal(numbers, whole[key][-num_epochs:], key)
    assert not path.exists()


def shuffled(x: np.ndarray, y: np.ndarray) -> Any:
    size = kt.BATCH // hvd.size()
    return hvd.shard((x, y), batch_size=size, shuffle=True)


@pytest.mark.thorough(4)
@pytest.mark.parametrize(
    ("interrupt_at", "save_freq"),
    # The last is due in the last batch of an epoch.
    [((2, 5), "epoch"), ((2, 5), 3), ((2, 1), 8)],
)
def test_shuffled_shares_go_on_with_the_row_that_comes_next(
    path: pathlib.Path, interrupt_at: tuple[int, int], save_freq: str | int
) -> None:
    expected, whole, _ = train(None, share=shuffled)
    options: dict[str, Any] = {"save_freq": save_freq, "share": shuffled}
    train(path, interrupt_at, **options)
    values, history, num_begun = train(path, **options)
    assert num_begun == 2
    for value, wanted in zip(values, expected, strict=True):
        assert value.tobytes() == wanted.tobytes()
    for key, numbers in history.items():
        np.testing.assert_array_equal(numbers, whole[key][-2:], key)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("adds_up", [True, False])
def test_states_of_other_ranks_keep_their_sum_or_mean(
    dtype: str, adds_up: bool
) -> None:
    old = np.arange(3 * (hvd.size() + 1)).reshape(-1, 3).astype(dtype)
    own = _training_state.own_value(
        old.view(np.uint8), old.dtype, adds_up=adds_up
    )
    assert own is not None
    new = np.stack(hvd.allgather_object(own.view(dtype)))
    if adds_up:
        np.testing.assert_allclose(new.sum(0), old.sum(0), rtol=1e-6)
    elif dtype == "float32":
        np.testing.assert_allclose(new.mean(0), old.mean(0), rtol=1e-6)
    else:
        np.testing.assert_array_equal(new, old[: hvd.size()])


@needs_peers
def test_a_backup_of_another_run_is_refused(path: pathlib.Path) -> None:
    callbacks = [BackupAndRestore(path, delete_checkpoint=False)]
    data = kt.shares(*kt.regression_data())
    compiled().fit(data, verbose=0, callbacks=callbacks)
    other = keras.Sequential(
        [keras.Input((kt.NUM_FEATURES,)), keras.layers.Dense(1)]
    )
    other.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), "mse")
    with pytest.raises(ValueError, match="those that were backed up"):
        other.fit(data, verbose=0, epochs=2, callbacks=callbacks)


@pytest.mark.parametrize("save_freq", [0, "batch", True])
def test_backup_refuses_a_wrong_save_freq(save_freq: Any) -> None:
    text = f"`save_freq` must be .*save_freq={save_freq!r}"
    with pytest.raises(ValueError, match=text):
        BackupAndRestore("dir", save_freq)


def test_backup_refuses_an_empty_directory_name() -> None:
    with pytest.raises(ValueError, match="`backup_dir` must"):
        BackupAndRestore("")


def test_a_model_is_built_by_its_data(path: pathlib.Path) -> None:
    model = kt.build(kt.SubclassedModel)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD()), "mse")
    data = kt.shares(*kt.regression_data())
    model.fit(data, verbose=0, callbacks=[BackupAndRestore(path)])
    assert model.built


class NeedsValues(keras.Model):
    """Cannot be called on symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        factor = float(x[0, 0])
        return self.dense(x) * factor


def test_a_model_that_is_not_built_is_refused(path: pathlib.Path) -> None:
    model = NeedsValues()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD())
    model.compile(optimizer, "mse", run_eagerly=True)
    data = kt.shares(*kt.regression_data())
    with pytest.raises(ValueError, match="must be built"):
        model.fit(data, verbose=0, callbacks=[BackupAndRestore(path)])
