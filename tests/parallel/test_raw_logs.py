"""Tests of logs that are no metric's, for each backend."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd

ops = keras.ops
needs_peers = pytest.mark.ranks(2)
BACKEND = keras.backend.backend()


class Critic(keras.Model):
    """Logs means over the rows of a batch, and trains on nothing else.

    Args:
        how: What it logs: "mean", or a method that computes a loss.
    """

    def __init__(self, how: str = "mean") -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.how = how

    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(x)

    def d_loss(self, x: Any, y: Any, y_pred: Any, training: bool) -> Any:
        if self.how == "mean":
            return ops.mean(y_pred * y)
        # The second is what `compute_loss_and_updates` calls.
        return getattr(self, self.how)(x, y, y_pred, None, training=training)

    def train_step(self, *args: Any) -> Any:
        return getattr(self, f"_train_on_{BACKEND}")(*args)

    def test_step(self, *args: Any) -> Any:
        x, y = args[-1][:2]
        if BACKEND != "jax":
            return {"d_loss": self.d_loss(x, y, self(x), False)}
        trained, others, metrics = args[0]
        y_pred, others = self.stateless_call(trained, others, x)
        d_loss = self.d_loss(x, y, y_pred, False)
        return {"d_loss": d_loss}, (trained, others, metrics)

    def _train_on_tensorflow(self, data: Any) -> Any:
        import tensorflow as tf

        x, y = data[:2]
        with tf.GradientTape() as tape:
            loss = self.d_loss(x, y, self(x), True)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"d_loss": loss}

    def _train_on_torch(self, data: Any) -> Any:
        import torch

        x, y = data[:2]
        self.zero_grad()
        loss = self.d_loss(x, y, self(x), True)
        loss.backward()
        variables = self.trainable_variables
        with torch.no_grad():
            gradients = [v.value.grad for v in variables]
            self.optimizer.apply(gradients, variables)
        return {"d_loss": loss.detach()}

    def _train_on_jax(self, state: Any, data: Any) -> Any:
        import jax

        trained, others, slots, metrics = state
        x, y = data[:2]

        def loss_of(trained: Any) -> Any:
            y_pred, _ = self.stateless_call(trained, others, x)
            return self.d_loss(x, y, y_pred, True)

        loss, gradients = jax.value_and_grad(loss_of)(trained)
        trained, slots = self.optimizer.stateless_apply(
            slots, gradients, trained
        )
        return {"d_loss": loss}, (trained, others, slots, metrics)


def rows(num: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(5)
    x = generator.normal(size=(num, 3)).astype("float32")
    return x, np.arange(num, dtype="float32")[:, None] ** 2


def model_of(how: str, **options: Any) -> Any:
    keras.utils.set_random_seed(3)
    model = Critic(how)
    model(np.zeros([1, 3], "float32"))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
    model.compile(optimizer, "mse", **options)
    return model


def logged(model: Any, data: Any, **options: Any) -> dict[str, float]:
    average = hvd.callbacks.MetricAverageCallback()
    history = model.fit(
        data, verbose=0, shuffle=False, callbacks=[average], **options
    )
    return {name: values[-1] for name, values in history.history.items()}


def of_last_step(model: Any, x: Any, y: Any, size: int, how: str) -> float:
    """What one process logs of the last of its batches."""
    rest = len(x) % size or size
    x, y = x[-rest:], y[-rest:]
    y_pred = model.predict(x, verbose=0)
    if how == "mean":
        return float(np.mean(y_pred * y))
    return float(np.mean((y_pred - y) ** 2))


@needs_peers
@pytest.mark.parametrize("how", ["mean", "compute_loss", "_compute_loss"])
@pytest.mark.parametrize("rest", ["uneven", "few", "none"])
def test_logs_of_shares_are_those_of_all_rows(how: str, rest: str) -> None:
    size = hvd.size()
    num = {"uneven": size + 1, "few": size - 1, "none": 0}[rest]
    data = rows(8 * size + num)
    model = model_of(how)
    share = hvd.shard(data, batch_size=4)
    logged(model, share, validation_data=share)
    # What was traced is used again.
    logs = logged(model, share, validation_data=share)
    wanted = of_last_step(model, *data, 4 * size, how)
    assert logs["d_loss"] == pytest.approx(wanted, rel=1e-5)
    assert logs["val_d_loss"] == pytest.approx(wanted, rel=1e-5)


@needs_peers
def test_logs_of_unequal_arrays_are_those_of_all_rows() -> None:
    """Each rank has arrays of its own, with another last batch."""
    if BACKEND == "jax":
        return  # equal arrays are as above
    data = rows(4 * hvd.size() + 1 + hvd.rank())
    x, y = data
    model = model_of("mean")
    logs = logged(model, x, y=y, batch_size=4 + len(x))
    y_pred = model.predict(x, verbose=0)
    sums = hvd.allgather_object([float(np.sum(y_pred * y)), len(x)])
    wanted = sum(s for s, _ in sums) / sum(n for _, n in sums)
    assert logs["d_loss"] == pytest.approx(wanted, rel=1e-5)


@needs_peers
@pytest.mark.parametrize("policy", ["split", "pad"])
@pytest.mark.parametrize("is_eager", [False, True])
def test_logs_of_batches_of_any_length_are_those_of_all_rows(
    is_eager: bool, policy: str
) -> None:

    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return num

        def __getitem__(self, index: int) -> Any:
            x, y = rows(4 * num)
            own = slice(4 * index, 4 * index + 4 - index % 4)
            return x[own], y[own]

    # With "pad", the last rank has a copy of the first batch.
    num = hvd.size() - (policy == "pad")
    model = model_of("mean", run_eagerly=is_eager)
    logs = logged(model, hvd.shard(Batches(), policy=policy))
    batches = [Batches()[i] for i in range(num)]
    x, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    wanted = of_last_step(model, x, y, len(x), "mean")
    assert logs["d_loss"] == pytest.approx(wanted, rel=1e-5)


class Nested(Critic):
    """Logs a dict of values too, as the logs of a compiled metric are one."""

    def train_step(self, *args: Any) -> Any:
        found = super().train_step(*args)
        logs = found[0] if BACKEND == "jax" else found
        logs["all"] = {"z": logs["d_loss"] * 2.0}
        return found


def test_logs_keep_their_order() -> None:
    data = rows(8 * hvd.size())
    orders = []
    for callbacks in [], [hvd.callbacks.MetricAverageCallback()]:
        model = Nested()
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)))
        share = hvd.shard(data, batch_size=4)
        history = model.fit(share, verbose=0, callbacks=callbacks)
        orders.append(list(history.history))
    assert orders == [["z", "d_loss"]] * 2
