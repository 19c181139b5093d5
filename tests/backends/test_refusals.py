"""A `fit` that was refused is refused again: nothing was noted as equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import small_training as small

import hvd_keras as hvd
from hvd_keras.callbacks import BroadcastGlobalVariablesCallback, StepsGuard

LAST = hvd.size() - 1

pytestmark = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")


class SetRate(keras.callbacks.Callback):
    """Sets the rate of the last rank when an epoch ends."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if hvd.rank() == LAST:
            self.model.optimizer.learning_rate = 0.01


def compiled(**options: Any) -> keras.Model:
    model = small.model()
    sgd = keras.optimizers.SGD(0.1)
    model.compile(hvd.DistributedOptimizer(sgd, **options), "mse")
    return model


def fit(model: keras.Model, *callbacks: Any, **options: Any) -> None:
    data = small.shares(*small.data())
    options = {"callbacks": list(callbacks), "verbose": 0, **options}
    model.fit(data, **options)


def refuse_weights() -> Callable[[], None]:
    model = compiled()
    last = model.layers[-1].bias
    last.assign(np.full(last.shape, float(hvd.rank() == LAST)))
    return lambda: fit(model)


def refuse_rates() -> Callable[[], None]:
    model = compiled()
    ours = BroadcastGlobalVariablesCallback()
    return lambda: fit(model, ours, SetRate(), epochs=3)


def refuse_epochs() -> Callable[[], None]:
    model, epochs = compiled(), 1 + hvd.rank()
    return lambda: fit(model, StepsGuard(), epochs=epochs)


def refuse_first_epochs() -> Callable[[], None]:
    model, first = compiled(), hvd.rank()
    return lambda: fit(model, StepsGuard(), epochs=3, initial_epoch=first)


def refuse_callbacks() -> Callable[[], None]:
    """The others have none that could wait for the last rank."""
    model = compiled()
    ours = [StepsGuard()] if hvd.rank() == LAST else []
    return lambda: fit(model, *ours)


def refuse_settings() -> Callable[[], None]:
    compression = hvd.Compression.none
    if hvd.rank() == LAST:
        compression = hvd.Compression.fp16
    model = compiled(compression=compression)
    return lambda: fit(model)


@pytest.mark.parametrize(
    ("refuse", "words"),
    [
        (refuse_weights, "same weights.*BroadcastGlobal.*bias"),
        (refuse_rates, "the rates 0.1 on rank"),
        (refuse_epochs, r"number of epochs.*\[1, 2"),
        (refuse_first_epochs, r"same epoch.*\[0, 1"),
        (refuse_callbacks, r"same callbacks of hvd_keras.*\[\[\], "),
        (refuse_settings, "compression NoneComp.*compression FP16Comp"),
    ],
)
def test_each_fit_is_refused(refuse: Any, words: str) -> None:
    fit_again = refuse()
    for _ in range(3):
        with pytest.raises(hvd.MismatchError, match=words):
            fit_again()
