"""ConsistencyCheck names what differs, and where."""

from __future__ import annotations

from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf
from selection import thorough_except

import hvd_keras as hvd
from hvd_keras._common import log
from hvd_keras.callbacks import ConsistencyCheck

pytestmark = pytest.mark.thorough(1, 4)


def fit(*callbacks: Any, **options: Any) -> keras.Model:
    def make_model() -> keras.Model:
        inputs = keras.Input((kt.NUM_FEATURES,))
        hidden = keras.layers.BatchNormalization()(inputs)
        return keras.Model(inputs, keras.layers.Dense(1)(hidden))

    model = kt.build(make_model)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1))
    model.compile(optimizer, "mse", **options)
    model.fit(
        kt.shares(*kt.regression_data()),
        epochs=2,
        verbose=0,
        callbacks=list(callbacks),
    )
    return model


class Spoil(keras.callbacks.Callback):
    """Changes a weight on one rank in the second epoch."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.model.optimizer.iterations == kt.NUM_BATCHES + 1:
            weight = self.model.layers[-1].kernel
            weight.assign(weight + float(hvd.rank() == hvd.size() - 1))


@pytest.mark.parametrize(
    ("at_once", "num_checks"),
    [pytest.param(1, 5, marks=pytest.mark.thorough), (2, 4)],
)
def test_equal_ranks_exchange_little(at_once: int, num_checks: int) -> None:
    counts = []
    for callbacks in ([], [ConsistencyCheck(every=3)]):
        before = hvd.stats()["num_requests"]
        fit(*callbacks, steps_per_execution=at_once)
        counts.append(hvd.stats()["num_requests"] - before)
    assert counts[1] - counts[0] == (num_checks if hvd.size() > 1 else 0)


@pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
def test_the_step_the_variable_and_the_rank_are_named() -> None:
    words = (
        r"after step 11 of this training \(epoch 1, batch 2\): "
        rf"'dense.*kernel', whose values on rank {hvd.size() - 1} are not those"
    )
    with pytest.raises(hvd.MismatchError, match=words):
        fit(Spoil(), ConsistencyCheck(every=11))


@pytest.mark.parametrize("every", [0, 2.5, True])
def test_a_wrong_interval_is_refused(every: Any) -> None:
    with pytest.raises(ValueError, match="every"):
        ConsistencyCheck(every)


BAD_BATCH = 2


def data_with_nan() -> Any:
    """Returns shares; a batch of the last rank holds a NaN."""

    def spoiled(step: Any, rows: Any) -> Any:
        x, y = rows
        is_bad = (step == BAD_BATCH) & (hvd.rank() == hvd.size() - 1)
        return x, y + tf.where(is_bad, np.float32("nan"), np.float32(0))

    return kt.shares(*kt.regression_data()).enumerate().map(spoiled)


@pytest.mark.parametrize("jit_compile", thorough_except([False, True], False))
def test_an_update_that_is_not_finite_is_skipped(
    jit_compile: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(log, "warning", lines.append)
    x, y = kt.regression_data()
    bad = np.arange(kt.BATCH) + BAD_BATCH * kt.BATCH
    good = np.delete(np.arange(len(x)), bad)
    expected = kt.build(kt.functional_model)
    expected.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    expected.fit(kt.whole_batches(x[good], y[good]), verbose=0)
    model = kt.build(kt.functional_model)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(
        hvd.DistributedOptimizer(optimizer), "mse", jit_compile=jit_compile
    )
    check = ConsistencyCheck(every=2, nonfinite="skip")
    model.fit(data_with_nan(), verbose=0, callbacks=[check])
    kt.assert_equal_on_all_ranks(model.get_weights())
    kt.assert_close(model.get_weights(), expected.get_weights(), 1e-5)
    if hvd.rank() == 0:
        (line,) = lines
        assert line.startswith("Skipped updates: 1.")
        assert f"from rank {hvd.size() - 1} in step {BAD_BATCH + 1}" in line
    assert optimizer.hvd_watch is None


def test_a_gradient_that_is_not_finite_raises() -> None:
    model = kt.build(kt.functional_model)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
    model.compile(optimizer, "mse")
    check = ConsistencyCheck(every=1, nonfinite="raise")
    step = f"rank {hvd.size() - 1} in step {BAD_BATCH + 1}"
    words = f"{step} of optimizer '{optimizer.name}'"
    with pytest.raises(FloatingPointError, match=words):
        model.fit(data_with_nan(), verbose=0, callbacks=[check])
    assert all(np.isfinite(w).all() for w in model.get_weights())


def test_a_wrong_action_is_refused() -> None:
    with pytest.raises(ValueError, match="nonfinite"):
        ConsistencyCheck(nonfinite="stop")
