"""The warm-up schedule follows the formula of the callback."""

from __future__ import annotations

from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest

import hvd_keras as hvd

pytestmark = pytest.mark.thorough(1, 4)

NUM_STEPS = 2 * kt.NUM_BATCHES


def formula(step: int, inner: float, warmup_steps: int, start: float) -> float:
    return inner * (start + (1.0 - start) * min((step + 1) / warmup_steps, 1.0))


class Rates(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_begin(self, batch, logs=None) -> None:
        self.rates.append(float(self.model.optimizer.learning_rate.numpy()))


def fit(optimizer: Any, callbacks: list) -> keras.Model:
    model = kt.build(kt.functional_model)
    model.compile(optimizer, "mse")
    data = kt.shares(*kt.regression_data())
    model.fit(data, epochs=2, verbose=0, callbacks=callbacks)
    return model


@pytest.mark.parametrize("with_schedule", [False, True])
def test_each_batch_has_the_rate_of_the_formula(with_schedule: bool) -> None:
    decay = keras.optimizers.schedules.ExponentialDecay(0.4, 5, 0.5)
    schedule = hvd.Warmup(decay if with_schedule else 0.4, 6)
    rates = Rates()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(schedule))
    fit(optimizer, [rates])
    expected = [
        formula(
            step,
            0.4 * (0.5 ** (step / 5) if with_schedule else 1.0),
            6,
            1.0 / hvd.size(),
        )
        for step in range(NUM_STEPS)
    ]
    np.testing.assert_allclose(rates.rates, expected, rtol=1e-6)


def test_training_equals_that_with_the_callback() -> None:
    with_schedule = fit(
        hvd.DistributedOptimizer(keras.optimizers.SGD(hvd.Warmup(0.2, 16))), []
    )
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.2, 2)
    with_callback = fit(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.2)), [warmup]
    )
    kt.assert_close(
        with_schedule.get_weights(), with_callback.get_weights(), 1e-6
    )


@pytest.mark.parametrize("counts_batches", [False, True])
def test_accumulated_steps_count_as_updates_or_batches(
    counts_batches: bool,
) -> None:
    # 16 batches make 4 updates.
    schedule = hvd.Warmup(0.2, 12 if counts_batches else 3, 0.0)
    accumulating = hvd.DistributedOptimizer(
        keras.optimizers.SGD(schedule),
        backward_passes_per_step=4,
        schedule_counts_batches=counts_batches,
    )
    model = fit(accumulating, [])
    x, y = kt.regression_data()
    wanted = kt.build(kt.functional_model)
    wanted.compile(keras.optimizers.SGD(0.0), "mse")
    for update in range(4):
        step = (4 * update + 3, 12) if counts_batches else (update, 3)
        wanted.optimizer.learning_rate = formula(step[0], 0.2, step[1], 0.0)
        first = 4 * kt.BATCH * (update % 2)
        rows = slice(first, first + 4 * kt.BATCH)
        wanted.train_on_batch(x[rows], y[rows])
    kt.assert_close(model.get_weights(), wanted.get_weights(), 1e-5)


def test_schedule_is_saved_with_its_start_multiplier(tmp_path: Any) -> None:
    decay = keras.optimizers.schedules.CosineDecay(0.4, 50)
    schedule = hvd.Warmup(decay, 8, start_multiplier=0.25)
    model = fit(hvd.DistributedOptimizer(keras.optimizers.SGD(schedule)), [])
    model.save(tmp_path / "model.keras")
    loaded = hvd.load_model(tmp_path / "model.keras").optimizer
    assert float(loaded.learning_rate.numpy()) == float(schedule(NUM_STEPS))
    config = keras.saving.serialize_keras_object(schedule)
    again = keras.saving.deserialize_keras_object(config)
    for step in range(NUM_STEPS):
        assert float(again(step)) == float(schedule(step))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((None, 5), TypeError),
        (("0.1", 5), TypeError),
        ((0.1, 0), ValueError),
        ((0.1, 2.5), ValueError),
    ],
)
def test_bad_arguments_raise(arguments: tuple, error: type[Exception]) -> None:
    with pytest.raises(error, match="Received"):
        hvd.Warmup(*arguments)
