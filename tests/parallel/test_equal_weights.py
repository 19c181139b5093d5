"""Ranks that have trained apart do not end a `fit` in silence."""

from __future__ import annotations

import logging
import time
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras.callbacks import (
    BroadcastGlobalVariablesCallback,
    SyncEarlyStopping,
)

pytestmark = [
    pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks"),
    pytest.mark.thorough(4),
]

LAST = hvd.size() - 1


class Act(keras.callbacks.Callback):
    """Calls a function on the last rank at the end of a batch of an epoch."""

    def __init__(self, act: Any, epoch: int, batch: int) -> None:
        super().__init__()
        self.act, self.when = act, (epoch, batch)
        self.num_epochs = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch
        self.num_epochs += 1

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if hvd.rank() == LAST and self.when == (self.epoch, batch):
            self.act(self.model)


def halve_rate(model: Any) -> None:
    model.optimizer.learning_rate = 0.25


def change_weight(model: Any) -> None:
    model.layers[1].bias.assign_add([1e-3] * model.layers[1].bias.shape[0])


def change_slot(model: Any) -> None:
    (slot,) = [
        v for v in model.optimizer.variables if "bias_momentum" in v.path
    ][:1]
    slot.assign(np.full(slot.shape, 3.0))


def fit(*callbacks: Any, epochs: int = 1, **options: Any) -> keras.Model:
    model = kt.build(kt.functional_model)
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, momentum=0.5)),
        "mse",
    )
    options.pop("prepare", lambda model: None)(model)
    model.fit(
        kt.shares(*kt.regression_data()),
        epochs=epochs,
        verbose=0,
        callbacks=list(callbacks),
        **options,
    )
    return model


@pytest.mark.parametrize(
    "ours", [BroadcastGlobalVariablesCallback, SyncEarlyStopping]
)
@pytest.mark.parametrize(
    ("act", "words"),
    [
        (halve_rate, "the rates 0.5 on rank.*0.25 on rank"),
        (change_weight, "bias' has the norm"),
        (change_slot, "bias_momentum' has the norm"),
    ],
)
def test_a_callback_of_batches_on_one_rank(
    ours: Any, act: Any, words: str
) -> None:
    batch = 3 if act is halve_rate else kt.NUM_BATCHES - 1
    change = Act(act, 1, batch)
    with pytest.raises(hvd.MismatchError, match=words) as caught:
        fit(ours(), change, epochs=2)
    assert change.num_epochs == 2
    text = str(caught.value)
    assert f"on rank {LAST}" in text
    assert "has the norm" in text
    assert "The logs of a batch are those of the rank" in text


def test_a_difference_is_told_at_the_end_of_a_long_epoch() -> None:
    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            time.sleep(0.2)

    change = Act(change_weight, 0, 3)
    with pytest.raises(hvd.MismatchError, match="has the norm"):
        fit(BroadcastGlobalVariablesCallback(), change, Slow(), epochs=9)
    assert change.num_epochs == 1


def test_a_refused_training_is_refused_again() -> None:
    callbacks = keras.callbacks.CallbackList([SyncEarlyStopping()])
    model = kt.build(kt.functional_model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)), "mse")
    model.optimizer.build(model.trainable_variables)
    callbacks.set_model(model)
    if hvd.rank() == LAST:
        change_weight(model)
    for _ in range(2):
        callbacks.on_train_begin()
        with pytest.raises(hvd.MismatchError, match="has the norm"):
            callbacks.on_train_end()


def test_local_variables_may_differ() -> None:
    def make_local(model: Any) -> None:
        model.optimizer.register_local_var(model.layers[1].bias)

    fit(
        BroadcastGlobalVariablesCallback(),
        Act(change_weight, 0, 3),
        prepare=make_local,
    )
    model = kt.build(kt.functional_model)
    bias = model.layers[1].bias
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    model.fit(
        kt.shares(*kt.regression_data()),
        verbose=0,
        callbacks=[
            BroadcastGlobalVariablesCallback(local_variables=[bias]),
            Act(change_weight, 0, 3),
        ],
    )


@pytest.mark.parametrize("is_on_all", [True, False])
def test_best_weights_that_some_ranks_restore(
    is_on_all: bool, caplog: Any
) -> None:
    x, y = kt.regression_data()
    stopping = keras.callbacks.EarlyStopping(
        "val_loss", patience=9, restore_best_weights=True
    )
    ours = [BroadcastGlobalVariablesCallback()]

    class Forge(keras.callbacks.Callback):
        """The ranks see other losses."""

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["val_loss"] = epoch * (1.0 if hvd.rank() else -1.0)

    if is_on_all:
        with pytest.raises(hvd.MismatchError, match="has the norm"):
            fit(*ours, Forge(), stopping, epochs=3, validation_data=(x, y))
        return
    some = [stopping] if hvd.rank() == LAST else []
    with caplog.at_level(logging.WARNING, logger="hvd_keras"):
        fit(*ours, Forge(), *some, epochs=3, validation_data=(x, y))
    told = "restored its best ones on some ranks alone" in caplog.text
    assert told == (hvd.rank() == 0)
