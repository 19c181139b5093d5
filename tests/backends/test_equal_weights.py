"""Ranks that have trained apart do not end a `fit` in silence."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import small_training as st

import hvd_keras as hvd
from hvd_keras.exceptions import MismatchError

pytestmark = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")

LAST = hvd.size() - 1


class Act(keras.callbacks.Callback):
    """Acts on the last rank, in the last epoch."""

    def __init__(self, act: str) -> None:
        super().__init__()
        self.act = act
        self.epoch = 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.act != "rate" or hvd.rank() != LAST or self.epoch == 0:
            return
        if batch == 2:
            self.model.optimizer.learning_rate = 0.25

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.act == "weight" and hvd.rank() == LAST and epoch == 1:
            bias = self.model.layers[0].bias
            bias.assign(bias + 1e-3)
        if self.act == "flush" and epoch == 1:
            # Long without a gradient, it has become a number that some threads
            # flush to zero.
            moments = self.model.optimizer.variables[2]
            tiny = np.full(moments.shape, 1e-39 * hvd.rank(), "float32")
            moments.assign(tiny)


def fit(act: str) -> None:
    model = st.model()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.5, 0.9)), "mse"
    )
    model.fit(
        st.shares(*st.data()),
        epochs=2,
        verbose=0,
        callbacks=[
            hvd.callbacks.BroadcastGlobalVariablesCallback(0),
            Act(act),
        ],
    )


def test_a_weight_that_one_rank_has_changed() -> None:
    for _ in range(2):
        with pytest.raises(MismatchError, match="has the norm") as caught:
            fit("weight")
        assert f"on rank {LAST}" in str(caught.value)


@pytest.mark.skipif(
    "keras.backend.backend() == 'jax'",
    reason="Keras on JAX keeps the rate of an epoch from its callbacks",
)
def test_a_rate_that_one_rank_has_changed() -> None:
    with pytest.raises(
        MismatchError, match=r"the rates 0\.5 on rank 0"
    ) as caught:
        fit("rate")
    assert "The logs of a batch are those of the rank" in str(caught.value)


def test_equal_ranks_end_in_peace() -> None:
    fit("")
    fit("flush")
