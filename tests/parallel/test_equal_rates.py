"""Ranks whose learning rates have come apart do not train on in silence."""

from __future__ import annotations

import re
from typing import Any

import keras
import keras_training as kt
import pytest

import hvd_keras as hvd
from hvd_keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    MetricAverageCallback,
    SyncEarlyStopping,
)

pytestmark = [
    pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks"),
    pytest.mark.thorough(4),
]

LAST = hvd.size() - 1


class SetRate(keras.callbacks.Callback):
    """Sets the rate of the last rank at the end of an epoch."""

    def __init__(self, epoch: int, rate: float = 0.25) -> None:
        super().__init__()
        self.epoch, self.rate = epoch, rate
        self.num_epochs = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.num_epochs += 1
        if hvd.rank() == LAST and epoch == self.epoch:
            self.model.optimizer.learning_rate = self.rate


def compiled(optimizer: Any) -> keras.Model:
    model = kt.build(kt.functional_model)
    model.compile(optimizer, "mse")
    return model


def fit(model: keras.Model, *callbacks: Any, **options: Any) -> None:
    model.fit(
        kt.shares(*kt.regression_data()),
        epochs=3,
        verbose=0,
        callbacks=list(callbacks),
        **options,
    )


def received() -> str:
    ranks = ", ".join(map(str, range(LAST)))
    words = f"rank{'s' if LAST > 1 else ''} {ranks}"
    return re.escape(f"the rates 0.5 on {words}; 0.25 on rank {LAST}")


@pytest.mark.parametrize(
    "ours", [BroadcastGlobalVariablesCallback, SyncEarlyStopping]
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_rate_that_one_rank_has_changed(ours: Any, is_first: bool) -> None:
    model = compiled(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)))
    change = SetRate(epoch=1)
    callbacks = [change, ours()] if is_first else [ours(), change]
    with pytest.raises(hvd.MismatchError, match=received()):
        fit(model, *callbacks)
    assert change.num_epochs == 2
    kt.assert_equal_on_all_ranks(model.get_weights())


@pytest.mark.parametrize("averages", [True, False])
def test_reduce_on_plateau(averages: bool) -> None:
    x, y = kt.regression_data()
    if hvd.rank() == LAST:
        y[0] = float("nan")  # a loss that never improves
    model = compiled(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)))
    callbacks = [
        BroadcastGlobalVariablesCallback(),
        keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_lr=0.25),
        MetricAverageCallback(),
    ]
    if averages:
        fit(model, *callbacks, validation_data=(x, y))
        assert float(model.optimizer.learning_rate.numpy()) == 0.25
        return
    with pytest.raises(hvd.MismatchError, match=received()):
        fit(model, *callbacks[:2], validation_data=(x, y))


def test_a_change_after_the_last_epoch_harms_nobody() -> None:
    model = compiled(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)))
    change = SetRate(epoch=2)
    fit(model, BroadcastGlobalVariablesCallback(), change)
    assert change.num_epochs == 3


@pytest.mark.parametrize("kind", ["plain", "process set"])
def test_optimizers_of_some_ranks_may_have_their_rates(kind: str) -> None:
    optimizer = keras.optimizers.SGD(0.5)
    alone = hvd.ProcessSet([LAST])
    hvd.shutdown()
    hvd.init(process_sets=[alone])
    if kind == "process set":
        optimizer = hvd.DistributedOptimizer(optimizer, process_set=alone)
    change = SetRate(epoch=0)
    try:
        fit(compiled(optimizer), SyncEarlyStopping(), change)
    finally:
        hvd.shutdown()
        hvd.init()
    assert change.num_epochs == 3


def test_rates_that_are_other_ones_at_first(
    capfd: pytest.CaptureFixture[str],
) -> None:
    rate = 0.25 if hvd.rank() == LAST else 0.5
    model = compiled(hvd.DistributedOptimizer(keras.optimizers.SGD(rate)))
    capfd.readouterr()
    fit(model, BroadcastGlobalVariablesCallback())
    told = capfd.readouterr().err
    is_told = re.search(f"begin with different.* rank. .*{received()}", told)
    assert bool(is_told) == (hvd.rank() == 0)
    assert float(model.optimizer.learning_rate.numpy()) == 0.5


def test_a_rank_that_has_loaded_a_model_may_have_another_rate(
    capfd: pytest.CaptureFixture[str],
) -> None:
    rate = 0.25 if hvd.rank() == 0 else 0.5
    model = compiled(hvd.DistributedOptimizer(keras.optimizers.SGD(rate)))
    if hvd.rank() == 0:
        model.optimizer.iterations.assign(7)
    capfd.readouterr()
    fit(model, BroadcastGlobalVariablesCallback())
    assert "different learning rates" not in capfd.readouterr().err
    assert float(model.optimizer.learning_rate.numpy()) == 0.25


def test_rounding_is_no_difference() -> None:
    model = compiled(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)))
    change = SetRate(epoch=0, rate=0.5 * (1.0 + 2.0**-22))
    fit(model, BroadcastGlobalVariablesCallback(), change)
    assert change.num_epochs == 3


def test_a_rate_of_a_second_optimizer() -> None:
    model = compiled(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)))
    model.second = hvd.DistributedOptimizer(keras.optimizers.SGD(0.5))

    class SetSecond(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if hvd.rank() == LAST:
                self.model.second.learning_rate = 0.25

    with pytest.raises(hvd.MismatchError, match=received()):
        fit(model, BroadcastGlobalVariablesCallback(), SetSecond())
