"""A script that has forgotten something gets one clear line, on rank 0."""

from __future__ import annotations

from typing import Any

import keras
import keras_training as kt
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras.callbacks import BroadcastGlobalVariablesCallback

pytestmark = [
    pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks"),
    pytest.mark.thorough(4),
]


class Lines(list[str]):
    """What our logger was told."""

    def of_rank_0(self, text: str) -> bool:
        """Whether rank 0 got exactly this line, and the others none."""
        wanted = 1 if hvd.rank() == 0 else 0
        return len(self) == wanted == sum(text in line for line in self)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    from hvd_keras._common import log

    found = Lines()
    monkeypatch.setattr(log, "warning", found.append)
    return found


def fit(model: keras.Model, data: Any, *callbacks: Any, **options: Any) -> None:
    for _ in range(2):
        model.fit(data, verbose=0, callbacks=list(callbacks), **options)


class OwnStep(keras.Model):
    """Reduces its gradients in its own `train_step`, if at all."""

    reduces = True

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        tape: Any = tf.GradientTape()
        if self.reduces:
            tape = hvd.DistributedGradientTape(tape)
        with tape:
            loss = tf.reduce_mean((self(x) - y) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def own_step() -> keras.Model:
    inputs = keras.Input((kt.NUM_FEATURES,))
    return OwnStep(inputs, keras.layers.Dense(1)(inputs))


@pytest.mark.parametrize("callback", [False, True])
def test_a_plain_optimizer(lines: Lines, callback: bool) -> None:
    model = kt.build(kt.functional_model)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    data = hvd.shard(kt.regression_data(), batch_size=8)
    fit(model, data, *[BroadcastGlobalVariablesCallback()][: int(callback)])
    assert lines.of_rank_0("plain optimizer SGD")


def test_a_plain_optimizer_in_an_own_step(lines: Lines) -> None:
    data = hvd.shard(kt.regression_data(), batch_size=8)
    model = kt.build(own_step)
    model.compile(keras.optimizers.SGD(0.1))
    fit(model, data, BroadcastGlobalVariablesCallback())
    assert not lines
    model = kt.build(own_step)
    model.reduces = False
    model.compile(keras.optimizers.SGD(0.1))
    fit(model, data, BroadcastGlobalVariablesCallback())
    assert lines.of_rank_0("train apart")


def test_the_same_data_on_all_ranks(lines: Lines) -> None:
    model = kt.build(kt.functional_model)
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x, y = kt.regression_data()
    broadcast = BroadcastGlobalVariablesCallback()
    fit(model, hvd.shard((x, y), batch_size=8), broadcast)
    assert not lines
    fit(model, kt.whole_batches(x, y), broadcast)
    assert lines.of_rank_0("hvd.shard")


def test_equal_losses_of_the_first_step_are_no_equal_data(lines: Lines) -> None:
    def make_model() -> keras.Model:
        inputs = keras.Input((kt.NUM_FEATURES,))
        head = keras.layers.Dense(1, "sigmoid", kernel_initializer="zeros")
        return keras.Model(inputs, head(inputs))

    model = kt.build(make_model)
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
        "binary_crossentropy",
    )
    x, y = kt.regression_data()
    data = hvd.shard((x, (y > 0).astype("float32")), batch_size=8)
    fit(model, data, BroadcastGlobalVariablesCallback())
    assert not lines
