"""An update that one rank skips is an error, never a pair with the next one."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import small_training as st

import hvd_keras as hvd
from hvd_keras.exceptions import MismatchError

pytestmark = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")

LAST = hvd.size() - 1
SKIPPED = 3 if hvd.rank() == LAST else -1


def skipping_on_torch() -> Any:
    import torch

    class Skipping(keras.Sequential):
        num_steps = 0

        def train_step(self, data: Any) -> Any:
            x, y = data[:2]
            self.num_steps += 1
            self.zero_grad()
            loss = self.compute_loss(x, y, self(x, training=True))
            loss.backward()
            if self.num_steps != SKIPPED:
                weights = self.trainable_weights
                with torch.no_grad():
                    self.optimizer.apply(
                        [weight.value.grad for weight in weights], weights
                    )
            return {"loss": loss.detach()}

    return Skipping


def skipping_on_jax() -> Any:
    import jax

    class Skipping(keras.Sequential):
        def __init__(self, layers: Any) -> None:
            super().__init__(layers)
            self.count = self.add_weight(
                shape=(), dtype="int32", initializer="zeros", trainable=False
            )

        def train_step(self, state: Any, data: Any) -> Any:
            x, y = data[:2]
            weights, others, slots, metrics = state

            def loss_of(weights: Any) -> Any:
                outputs, _ = self.stateless_call(weights, others, x)
                return jax.numpy.mean((outputs - y) ** 2)

            loss, gradients = jax.value_and_grad(loss_of)(weights)
            others = [each + (each.dtype == "int32") for each in others]
            (count,) = [each for each in others if each.dtype == "int32"]
            weights, slots = jax.lax.cond(
                count != SKIPPED,
                lambda: self.optimizer.stateless_apply(
                    slots, gradients, weights
                ),
                lambda: (weights, slots),
            )
            return {"loss": loss}, (weights, others, slots, metrics)

    return Skipping


def test_a_skipped_update_is_told_on_all_ranks() -> None:
    is_torch = keras.backend.backend() == "torch"
    kind = skipping_on_torch() if is_torch else skipping_on_jax()
    model = kind([keras.Input((st.NUM_FEATURES,)), keras.layers.Dense(1)])
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
        "mse",
        **({"jit_compile": False} if is_torch else {}),
    )
    with pytest.raises(MismatchError, match="step 3 on rank") as caught:
        model.fit(
            st.shares(*st.data()),
            verbose=0,
            callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
        )
    assert f"step 4 on rank {LAST}. All ranks must" in str(caught.value)
