"""An update that one rank skips is an error, never a pair with the next one."""

from __future__ import annotations

import time
from typing import Any

import keras
import keras_training as kt
import pytest
import tensorflow as tf

import hvd_keras as hvd
from hvd_keras.exceptions import MismatchError

pytestmark = [
    pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks"),
    pytest.mark.thorough(4),
]

LAST = hvd.size() - 1


class Skipping(keras.Model):
    """Skips the updates of some steps on some ranks, by `tf.cond`."""

    def __init__(
        self, skipped: dict[int, list[int]], begins: bool = False
    ) -> None:
        super().__init__()
        self.begins = begins  # each step, by a collective
        self.dense = keras.layers.Dense(1)
        self.skipped = skipped.get(hvd.rank(), [])
        self.step = tf.Variable(0, trainable=False)

    def build(self, shape: Any) -> None:
        self.dense.build(shape)
        self.built = True

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        x, y = data[:2]
        self.step.assign_add(1)
        if self.begins:
            x += 0 * hvd.allreduce(tf.constant(1.0), name="scale")
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        variables = self.trainable_variables
        gradients = tape.gradient(loss, variables)
        is_left_out = tf.reduce_any(
            tf.equal(self.step, tf.constant([-1, *self.skipped]))
        )
        tf.cond(
            is_left_out,
            lambda: None,
            lambda: self.optimizer.apply(gradients, variables),
        )
        return {"loss": loss}


def shares() -> Any:
    return hvd.shard(kt.regression_data(), batch_size=kt.BATCH // hvd.size())


def fit(
    skipped: dict[int, list[int]], begins: bool = False, **options: Any
) -> Any:
    keras.utils.set_random_seed(1)
    model = Skipping(skipped, begins)
    model.build((None, kt.NUM_FEATURES))
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)),
        "mse",
        jit_compile=False,
        **options,
    )
    model.fit(
        shares(),
        epochs=2,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    return model


@pytest.mark.parametrize("run_eagerly", [False, True], ids=["graph", "eager"])
def test_a_skipped_update_is_told_on_all_ranks(run_eagerly: bool) -> None:
    others = ", ".join(map(str, range(LAST)))
    others = others.replace(f", {LAST - 1}", f" and {LAST - 1}")
    words = f"step 5 on rank{'s' if LAST > 1 else ''} {others}; step 6 on rank"
    with pytest.raises(MismatchError, match=words) as caught:
        fit({LAST: [5]}, run_eagerly=run_eagerly)
    assert f"{LAST}. All ranks must update" in str(caught.value)


@pytest.mark.parametrize(
    ("skipped", "next_one"),
    [(5, "step 6"), (8, "after step 8"), (16, "after step 16")],
)
def test_a_skipped_update_is_told_by_any_next_collective(
    skipped: int, next_one: str
) -> None:
    begin = time.monotonic()
    with pytest.raises(MismatchError) as caught:
        fit({LAST: [skipped]}, begins=True)
    assert time.monotonic() - begin < 30  # a stall takes 60 s
    assert f"step {skipped} on rank" in str(caught.value)
    assert f"; {next_one} on rank {LAST}. All" in str(caught.value)
    assert int(fit({}).optimizer.iterations) == 16


@pytest.mark.parametrize("num_steps", [1, 2])
def test_all_ranks_may_skip(num_steps: int) -> None:
    every = {rank: [1, 5, 6, 9] for rank in range(hvd.size())}
    model = fit(every, steps_per_execution=num_steps)
    assert int(model.optimizer.iterations) == 12


def test_a_fit_after_a_refused_one_trains() -> None:
    with pytest.raises(MismatchError, match="step 5"):
        fit({LAST: [5]})
    assert int(fit({}).optimizer.iterations) == 16


class Alternating(keras.Model):
    """Two optimizers; one of them trains in every third step."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = [keras.layers.Dense(1), keras.layers.Dense(1)]
        self.optimizers = [
            hvd.DistributedOptimizer("sgd", name=f"of_{part}")
            for part in range(2)
        ]
        self.step = tf.Variable(0, trainable=False)

    def train_step(self, data: Any) -> Any:
        x, y = data
        self.step.assign_add(1)

        def train(part: int) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((self.parts[part](x) - y) ** 2)
            variables = self.parts[part].trainable_variables
            gradients = tape.gradient(loss, variables)
            self.optimizers[part].apply(gradients, variables)

        train(0)
        tf.cond(self.step % 3 == 0, lambda: train(1), lambda: None)
        return {"step": self.step}


def test_optimizers_may_train_in_other_steps() -> None:
    model = Alternating()
    for part, optimizer in zip(model.parts, model.optimizers, strict=True):
        part.build((None, kt.NUM_FEATURES))
        optimizer.build(part.trainable_variables)
    model.compile(jit_compile=False)
    model.fit(
        shares(),
        epochs=2,
        verbose=0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)],
    )
    steps = [int(each.iterations) for each in model.optimizers]
    assert steps == [2 * kt.NUM_BATCHES, 2 * kt.NUM_BATCHES // 3]
