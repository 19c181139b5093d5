"""Our callbacks work in `fit` on JAX and torch."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import small_training as small

import hvd_keras as hvd

SGD = keras.optimizers.SGD
callbacks = hvd.callbacks


def compiled(seed: int = 3, **dropout: Any) -> keras.Model:
    model = small.model(seed, **dropout)
    optimizer = hvd.DistributedOptimizer(SGD(0.1, momentum=0.9))
    model.compile(optimizer, "mse", metrics=["mae", keras.metrics.R2Score()])
    return model


@pytest.fixture
def shared_path(tmp_path: pathlib.Path) -> pathlib.Path:
    """Gives all ranks the directory of rank 0."""
    return pathlib.Path(hvd.broadcast_object(str(tmp_path)))


def test_ranks_start_with_the_weights_of_the_root() -> None:
    model = compiled(seed=hvd.rank(), dropout=0.5)
    wanted = hvd.broadcast_object(model.get_weights(), root_rank=1)

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            self.weights = self.model.get_weights()
            self.seeds = [
                variable.numpy().tolist()
                for variable in self.model.variables
                if tuple(variable.shape) == (2,)
            ]

    look = Look()
    broadcast = callbacks.BroadcastGlobalVariablesCallback(1)
    data = small.shares(*small.data(small.BATCH))
    model.fit(data, verbose=0, callbacks=[broadcast, look])
    for value, expected in zip(look.weights, wanted, strict=True):
        np.testing.assert_array_equal(value, expected)
    first, second = hvd.allgather_object(look.seeds)
    assert first != second
    small.on_all_ranks(model.get_weights())


def test_metrics_are_those_of_all_samples() -> None:
    x, y = small.data()
    model = small.model()
    model.compile(SGD(0.0), "mse", metrics=["mae", keras.metrics.R2Score()])
    expected = model.evaluate(x, y, verbose=0, return_dict=True)
    model = compiled()
    model.optimizer.learning_rate = 0.0
    end = 33 if hvd.rank() == 0 else len(x)
    own = slice(0 if hvd.rank() == 0 else 33, end)
    average = callbacks.MetricAverageCallback()
    result = model.evaluate(
        x[own], y[own], verbose=0, callbacks=[average], return_dict=True
    )
    history = model.fit(
        small.shares(x, y),
        validation_data=(x[own], y[own]),
        callbacks=[callbacks.BroadcastGlobalVariablesCallback(0), average],
        verbose=0,
    ).history
    for key, value in expected.items():
        np.testing.assert_allclose(result[key], value, rtol=1e-5)
        np.testing.assert_allclose(history[key], [value], rtol=1e-5)
        np.testing.assert_allclose(history[f"val_{key}"], [value], rtol=1e-5)


def test_rates_momentum_and_speed_are_logged() -> None:
    x, y = small.data()
    rates = [
        callbacks.LearningRateWarmupCallback(0.2, warmup_epochs=1),
        callbacks.LearningRateScheduleCallback(0.2, 0.1, start_epoch=1),
    ]
    model = compiled()
    seen: list[float] = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.append(float(self.model.optimizer.learning_rate.numpy()))

    history = model.fit(
        small.shares(x, y),
        epochs=3,
        verbose=0,
        callbacks=[
            callbacks.BroadcastGlobalVariablesCallback(0),
            *rates,
            callbacks.ThroughputCallback(),
            Look(),
        ],
    ).history
    steps = small.NUM_BATCHES
    warm = 0.2 * (0.5 + 0.5 * (np.arange(steps) + 1) / steps)
    expected = [*warm, *[0.2] * steps, *[0.02] * steps]
    np.testing.assert_allclose(seen, expected, rtol=1e-5)
    np.testing.assert_allclose(history["learning_rate"], [0.2, 0.2, 0.02])
    assert min(history["samples_per_second"]) > 0.0
    assert min(history["collectives_per_step"]) >= 1.0


def test_momentum_follows_the_rate() -> None:
    callback = callbacks.LearningRateScheduleCallback(0.1, lambda epoch: 0.5)
    model = compiled()
    model.fit(small.shares(*small.data()), verbose=0)
    before = [m.numpy() for m in model.optimizer.momentums]
    callback.set_model(model)
    callback.set_rate(0.05)
    for momentum, value in zip(model.optimizer.momentums, before, strict=True):
        np.testing.assert_allclose(momentum.numpy(), value / 2, rtol=1e-6)


def test_a_schedule_warms_up() -> None:
    schedule = hvd.Warmup(0.4, warmup_steps=4, start_multiplier=0.0)
    rates = [float(schedule(step)) for step in range(6)]
    np.testing.assert_allclose(rates, [0.1, 0.2, 0.3, 0.4, 0.4, 0.4], 1e-6)
    model = small.model()
    model.compile(hvd.DistributedOptimizer(SGD(schedule)), "mse")
    model.fit(small.shares(*small.data()), verbose=0)
    small.on_all_ranks(model.get_weights())


def test_all_ranks_stop_where_one_does() -> None:
    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if hvd.rank() == 1 and batch == 2:
                self.model.stop_training = True

    model = compiled()
    sync = callbacks.SyncEarlyStopping()
    data = small.shares(*small.data())
    model.fit(data, epochs=3, verbose=0, callbacks=[Stop(), sync])
    assert int(model.optimizer.iterations.numpy()) == 3


def test_epochs_end_when_the_first_rank_has_no_data() -> None:
    x, y = small.data()

    def batches() -> Iterator[Any]:
        for step in range(3 + 2 * hvd.rank()):
            rows = slice(8 * step, 8 * step + 8)
            yield x[rows], y[rows]

    model = compiled()
    guard = callbacks.StepsGuard()
    model.fit(batches(), verbose=0, callbacks=[guard])
    assert int(model.optimizer.iterations.numpy()) == 3
    model.fit(x[:20], y[:20], 5, verbose=0, callbacks=[guard])
    assert int(model.optimizer.iterations.numpy()) == 7


def test_unequal_numbers_of_steps_are_an_error_before_the_first_step() -> None:
    x, y = small.data()
    rows = slice(0, 16 + 16 * hvd.rank())
    model = compiled()
    guard = callbacks.StepsGuard()
    with pytest.raises(hvd.MismatchError, match="number of steps"):
        model.fit(x[rows], y[rows], 8, verbose=0, callbacks=[guard])
    assert int(model.optimizer.iterations.numpy()) == 0


def test_rank_0_saves_for_all(shared_path: pathlib.Path) -> None:
    model = compiled()
    best = callbacks.BestModelCheckpoint(
        monitor="loss", filepath=str(shared_path / "best.keras")
    )
    last = callbacks.ModelCheckpoint(
        str(shared_path / "last.weights.h5"), save_weights_only=True
    )
    average = callbacks.MetricAverageCallback()
    data = small.shares(*small.data())
    model.fit(data, epochs=2, verbose=0, callbacks=[average, best, last])
    small.on_all_ranks([best.best])
    other = small.model(seed=5)
    other.load_weights(shared_path / "last.weights.h5")
    for value, wanted in zip(
        other.get_weights(), model.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(value, wanted)
    loaded = hvd.load_model(shared_path / "best.keras")
    loaded.fit(data, verbose=0)
    small.on_all_ranks(loaded.get_weights())
    assert int(loaded.optimizer.iterations.numpy()) > small.NUM_BATCHES


@pytest.mark.parametrize(
    ("save_freq", "dropout_seed"), [("epoch", 1), (2, 1), (2, None)]
)
def test_a_run_that_ended_early_resumes(
    save_freq: Any, dropout_seed: int | None, shared_path: pathlib.Path
) -> None:
    class Fail(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if int(self.model.optimizer.iterations.numpy()) == 11:
                raise InterruptedError

    def run(*others: Any, seed: int = 5) -> keras.Model:
        keras.utils.set_random_seed(seed + hvd.rank())
        model = compiled(dropout=0.5, dropout_seed=dropout_seed)
        model.fit(
            small.shares(*small.data()),
            epochs=3,
            verbose=0,
            callbacks=[callbacks.BroadcastGlobalVariablesCallback(0), *others],
        )
        return model

    expected = run()
    backup = callbacks.BackupAndRestore(str(shared_path / "b"), save_freq)
    with pytest.raises(InterruptedError):
        run(backup, Fail())
    backup = callbacks.BackupAndRestore(str(shared_path / "b"), save_freq)
    model = run(backup, seed=77)
    assert int(model.optimizer.iterations.numpy()) == 3 * small.NUM_BATCHES
    for value, wanted in zip(
        model.get_weights(), expected.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(value, wanted)
    assert not (shared_path / "b").exists()


def test_ranks_with_different_rates_do_not_train_on() -> None:
    class SetRate(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if hvd.rank() == 1:
                self.model.optimizer.learning_rate = 0.25

    both = [callbacks.BroadcastGlobalVariablesCallback(), SetRate()]
    data = small.shares(*small.data())
    with pytest.raises(hvd.MismatchError, match=r"0\.1 on rank 0; 0\.25 on"):
        compiled().fit(data, epochs=2, verbose=0, callbacks=both)
