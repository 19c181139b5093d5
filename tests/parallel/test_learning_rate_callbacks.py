"""Schedules and warm-up follow Horovod's formulas; momentum the rate."""

from __future__ import annotations

import keras
import keras_training as kt
import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras.callbacks import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)

pytestmark = pytest.mark.thorough(1, 4)


class RatesOfBatches(keras.callbacks.Callback):
    def __init__(self) -> None:
        super().__init__()
        self.rates: list[float] = []

    def on_train_batch_begin(self, batch, logs=None) -> None:
        self.rates.append(float(self.model.optimizer.learning_rate.numpy()))


def fit(callbacks: list, optimizer=None, epochs: int = 4, **options):
    model = kt.build(kt.functional_model)
    model.compile(
        hvd.DistributedOptimizer(optimizer or keras.optimizers.SGD(0.5)),
        "mse",
        **options,
    )
    rates = RatesOfBatches()
    history = model.fit(
        kt.shares(*kt.regression_data()).take(4),
        epochs=epochs,
        verbose=0,
        callbacks=[*callbacks, rates],
    )
    return rates.rates, history.history, model


def test_warmup_reaches_the_rate_in_a_straight_line() -> None:
    rates, history, _ = fit([LearningRateWarmupCallback(0.8, 2)], epochs=3)
    size = hvd.size()
    expected = [
        0.8 / size * ((step + 1) / 4 * (size - 1) / 2 + 1) for step in range(8)
    ]
    np.testing.assert_allclose(rates[:8], expected, rtol=1e-6)
    np.testing.assert_allclose(rates[7:], 0.8, rtol=1e-6)
    np.testing.assert_allclose(
        history["learning_rate"], [rates[3], 0.8, 0.8], rtol=1e-6
    )


def test_warmup_can_start_anywhere() -> None:
    rates, _, _ = fit(
        [LearningRateWarmupCallback(0.8, 1, start_multiplier=0.5)], epochs=1
    )
    np.testing.assert_allclose(rates, [0.5, 0.6, 0.7, 0.8], rtol=1e-6)


def test_warmup_reaches_the_rate_with_steps_per_execution() -> None:
    rates, _, _ = fit(
        [LearningRateWarmupCallback(0.8, 2)], epochs=3, steps_per_execution=4
    )
    assert len(rates) == 3
    assert rates[-1] == pytest.approx(0.8)


def test_warmup_prints_on_rank_0(capsys: pytest.CaptureFixture[str]) -> None:
    fit([LearningRateWarmupCallback(0.8, 1, verbose=1)], epochs=2)
    printed = "Epoch 1: the learning rate has risen to 0.8" in (
        capsys.readouterr().out
    )
    assert printed == (hvd.rank() == 0)


def test_staircase_changes_once_an_epoch() -> None:
    rates, history, _ = fit(
        [
            LearningRateScheduleCallback(
                0.4, lambda epoch: 0.1 * epoch, start_epoch=1, end_epoch=3
            )
        ]
    )
    expected = np.repeat([0.5, 0.04, 0.08, 0.08], 4)
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    np.testing.assert_allclose(
        history["learning_rate"], expected[::4], rtol=1e-6
    )


def test_smooth_schedule_changes_with_each_batch() -> None:
    rates, _, _ = fit(
        [
            LearningRateScheduleCallback(
                0.4, lambda epoch: 1 / (1 + epoch), staircase=False
            )
        ],
        epochs=2,
    )
    np.testing.assert_allclose(
        rates, [0.4 / (1 + step / 4) for step in range(8)], rtol=1e-6
    )


def test_a_number_is_raised_to_the_power_of_the_epoch() -> None:
    rates, _, _ = fit([LearningRateScheduleCallback(0.4, 0.5, start_epoch=1)])
    np.testing.assert_allclose(rates[::4], [0.5, 0.4, 0.2, 0.1], rtol=1e-6)


@pytest.mark.parametrize("name", ["sgd", "nesterov", "rmsprop"])
def test_momentum_follows_the_rate(name: str) -> None:
    # A velocity without the rate needs no correction: v = m v + g,
    # w -= rate * v. This is the reference for the first weight.
    make = {
        "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        "nesterov": lambda: keras.optimizers.SGD(
            0.1, momentum=0.9, nesterov=True
        ),
        "rmsprop": lambda: keras.optimizers.RMSprop(0.1, momentum=0.9),
    }[name]
    corrected = make()
    plain = make()
    weight = keras.Variable([0.0])
    for optimizer in (corrected, plain):
        optimizer.build([weight])
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(corrected)
    callback = LearningRateScheduleCallback(0.1, 1.0)
    callback.set_model(model)

    weight.assign([0.0])
    corrected.apply([np.float32([1.0])], [weight])
    before = weight.numpy()[0]
    callback.set_rate(0.01)
    corrected.apply([np.float32([0.0])], [weight])
    moved = weight.numpy()[0] - before

    weight.assign([0.0])
    plain.apply([np.float32([1.0])], [weight])
    before = weight.numpy()[0]
    plain.apply([np.float32([0.0])], [weight])
    wanted = (weight.numpy()[0] - before) / 10
    assert moved == pytest.approx(wanted, rel=1e-5)


def test_corrected_momentum_equals_that_without_the_rate() -> None:
    # v = m v + g, w -= rate * v; the rate changes in each batch.
    inputs = keras.Input((kt.NUM_FEATURES,))
    model = keras.Model(inputs, keras.layers.Dense(1, use_bias=False)(inputs))
    model.set_weights([np.zeros((kt.NUM_FEATURES, 1))])
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(hvd.DistributedOptimizer(optimizer), "mse")
    x, y = kt.regression_data()
    schedule = LearningRateScheduleCallback(
        0.1, lambda epoch: 1.0 / (1.0 + 3.0 * epoch), staircase=False
    )
    model.fit(kt.shares(x, y), epochs=2, verbose=0, callbacks=[schedule])
    weights = np.zeros((kt.NUM_FEATURES, 1))
    velocity = np.zeros_like(weights)
    for step in range(2 * kt.NUM_BATCHES):
        rate = 0.1 / (1.0 + 3.0 * step / kt.NUM_BATCHES)
        first = kt.BATCH * (step % kt.NUM_BATCHES)
        rows, wanted = (a[first : first + kt.BATCH] for a in (x, y))
        gradient = 2.0 / kt.BATCH * rows.T @ (rows @ weights - wanted)
        velocity = 0.9 * velocity + gradient
        weights -= rate * velocity
    kt.assert_close(model.get_weights(), [weights], 1e-5)


def test_momentum_stays_without_correction_and_for_adam() -> None:
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    for optimizer, correct in (
        (keras.optimizers.SGD(0.1, momentum=0.9), False),
        (keras.optimizers.Adam(0.1), True),
    ):
        weight = keras.Variable([0.0])
        optimizer.build([weight])
        optimizer.apply([np.float32([1.0])], [weight])
        slots = [variable.numpy() for variable in optimizer.variables[2:]]
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(optimizer)
        callback = LearningRateScheduleCallback(
            0.1, 1.0, momentum_correction=correct
        )
        callback.set_model(model)
        callback.set_rate(0.01)
        for variable, slot in zip(optimizer.variables[2:], slots, strict=True):
            np.testing.assert_array_equal(variable.numpy(), slot)


@pytest.mark.thorough(4)
def test_loss_scale_optimizer_is_looked_through() -> None:
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = kt.build(kt.functional_model)
    finally:
        keras.config.set_dtype_policy("float32")
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)),
        "mse",
    )
    model.fit(
        kt.shares(*kt.regression_data()),
        epochs=2,
        verbose=0,
        callbacks=[LearningRateScheduleCallback(0.1, 0.5)],
    )
    assert float(model.optimizer.learning_rate.numpy()) == pytest.approx(0.05)


@pytest.mark.parametrize("callback", ["schedule", "warmup"])
def test_learning_rate_schedule_objects_are_refused(callback: str) -> None:
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    made = {
        "schedule": lambda: LearningRateScheduleCallback(0.1, 0.5),
        "warmup": lambda: LearningRateWarmupCallback(0.1),
    }[callback]()
    with pytest.raises(TypeError, match=r"LearningRate.*Callback must have"):
        fit([made], keras.optimizers.SGD(schedule))


def test_initial_lr_is_needed() -> None:
    with pytest.raises(ValueError, match="initial_lr"):
        LearningRateScheduleCallback(None, 0.5)


def test_steps_per_epoch_are_needed_where_they_are_unknown() -> None:
    model = kt.build(kt.functional_model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)), "mse")
    data = kt.shares(*kt.regression_data()).filter(lambda x, y: True)
    with pytest.raises(ValueError, match="steps_per_epoch"):
        model.fit(data, verbose=0, callbacks=[LearningRateWarmupCallback(0.1)])
    rates = RatesOfBatches()
    warmup = LearningRateWarmupCallback(0.8, 1, steps_per_epoch=kt.NUM_BATCHES)
    model.fit(data, verbose=0, callbacks=[warmup, rates])
    assert rates.rates[kt.NUM_BATCHES - 1] == pytest.approx(0.8)
