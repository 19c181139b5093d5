"""Tests of loops of one's own on unequal shares, for each backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras._keras import advice
from hvd_keras.data import _own_loops

ops = keras.ops
needs_peers = pytest.mark.ranks(2)


class Lines(list[str]):
    """What the loggers of all ranks were told."""

    def everywhere(self) -> list[list[str]]:
        return list(hvd.allgather_object(list(self)))


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lines]:
    from hvd_keras._common import log

    found = Lines()
    monkeypatch.setattr(log, "warning", found.append)
    monkeypatch.setattr(advice, "_told_rows", set())
    monkeypatch.setattr(_own_loops, "_reduces", _own_loops._Reduces())
    _own_loops._open.clear()
    yield found
    _own_loops._open.clear()


class Loop:
    """A model, and a loop of one's own around it."""

    def __init__(self, *, is_exact: bool = False) -> None:
        keras.utils.set_random_seed(3)
        self.model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(1)]
        )
        self.optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.1))
        self.optimizer.build(self.model.trainable_variables)
        self.is_exact = is_exact
        name = keras.backend.backend()
        self.step = getattr(self, f"_step_on_{name}")
        if name == "tensorflow":
            import tensorflow as tf

            self.step = tf.function(self.step)

    def loss(self, y: Any, y_pred: Any, *weights: Any) -> Any:
        errors = ops.square(y - y_pred)
        if not self.is_exact:
            return ops.mean(errors)
        mask = weights[0][:, None] > 0 if weights else None
        return hvd.global_mean(errors, mask=mask)

    def _step_on_tensorflow(self, x: Any, y: Any, *weights: Any) -> None:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = self.loss(y, self.model(x), *weights)
        variables = self.model.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)

    def _step_on_jax(self, x: Any, y: Any, *weights: Any) -> None:
        import jax

        def loss_of(values: Any) -> Any:
            y_pred, _ = self.model.stateless_call(values, [], x)
            return self.loss(y, y_pred, *weights)

        values = [v.value for v in self.model.trainable_variables]
        self.optimizer.apply(
            jax.grad(loss_of)(values), self.model.trainable_variables
        )

    def _step_on_torch(self, x: Any, y: Any, *weights: Any) -> None:
        self.model.zero_grad()
        x, y, *weights = map(ops.convert_to_tensor, (x, y, *weights))
        self.loss(y, self.model(x), *weights).backward()
        variables = self.model.trainable_variables
        gradients = [v.value.grad for v in variables]
        self.optimizer.apply(gradients, variables)

    def run(self, share: Any, num_epochs: int = 2) -> list[Any]:
        for _ in range(num_epochs):
            for batch in share:
                self.step(*batch)
        return self.model.get_weights()


def rows(num: int) -> tuple[Any, Any]:
    generator = np.random.default_rng(5)
    x = generator.normal(size=(num, 3)).astype("float32")
    return x, (x[:, :1] * np.arange(num)[:, None]).astype("float32")


class Batches(keras.utils.PyDataset):
    """Batches of 4 rows, the last one shorter."""

    def __init__(self, num_rows: int) -> None:
        super().__init__()
        self.x, self.y = rows(num_rows)

    @property
    def num_batches(self) -> int:
        return -(-len(self.x) // 4)

    def __getitem__(self, index: int) -> Any:
        own = slice(4 * index, 4 * index + 4)
        return self.x[own], self.y[own]


def is_told(lines: Lines, *words: str) -> bool:
    """Whether one line of one rank holds the words."""
    told = [line for each in lines.everywhere() for line in each]
    assert len(told) <= 1
    return bool(told) and all(
        word in told[0] for word in ("hvd.global_mean", *words)
    )


@needs_peers
@pytest.mark.parametrize("policy", ["split", "pad"])
def test_a_loop_on_unequal_rows_is_told_once(lines: Lines, policy: str) -> None:
    size = hvd.size()
    share = hvd.shard(rows(8 * size + 1 + size), batch_size=4, policy=policy)
    Loop().run(share)
    if policy == "pad":
        assert is_told(lines, "copies on rank 0")
    else:
        assert is_told(lines, f"2 rows on rank {size - 1}, 1 row on rank 0")
    assert len(lines) == (hvd.rank() == 0)


@needs_peers
@pytest.mark.parametrize("policy", ["split", "pad"])
def test_a_loop_with_a_global_mean_is_exact(lines: Lines, policy: str) -> None:
    data = rows(8 * hvd.size() + 1 + hvd.size())
    share = hvd.shard(data, batch_size=4, policy=policy)
    weights = Loop(is_exact=True).run(share, 1)
    assert lines.everywhere() == [[]] * hvd.size()
    model = Loop().model
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(*data, 4 * hvd.size(), shuffle=False, verbose=0)
    for ours, theirs in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3)


@needs_peers
def test_a_loop_on_equal_rows_is_told_nothing(lines: Lines) -> None:
    size = hvd.size()
    equal = hvd.shard(rows(10 * size), batch_size=4)
    held_out = hvd.shard(rows(5 * size + 1), batch_size=4)
    loop = Loop()
    for batch in held_out:  # before training, and after
        loop.model(batch[0])
    loop.run(equal)
    loop.run(hvd.shard(rows(8 * size + 1), batch_size=4, policy="drop"))
    for batch in held_out:
        loop.model(batch[0])
    assert lines.everywhere() == [[]] * size


@needs_peers
def test_a_share_that_is_only_looked_at_is_told_nothing(lines: Lines) -> None:
    size = hvd.size()
    held_out = hvd.shard(Batches(8 * size + 2), policy="join")
    loop = Loop()
    for number, batch in enumerate(hvd.shard(rows(8 * size), batch_size=2)):
        loop.step(*batch)
        if number == 1:
            for other in held_out:
                loop.model(other[0])
    assert lines.everywhere() == [[]] * size


@needs_peers
def test_keras_itself_is_told_nothing(lines: Lines) -> None:
    share = hvd.shard(rows(8 * hvd.size() + 3), batch_size=4)
    model = Loop().model
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    model.fit(share, verbose=0)
    average = hvd.callbacks.MetricAverageCallback()
    model.evaluate(share, verbose=0, callbacks=[average])
    for x, y, *_ in share:
        model.train_on_batch(x, y)
    assert lines.everywhere() == [[]] * hvd.size()


@needs_peers
def test_batches_of_a_py_dataset_of_other_lengths_are_told(
    lines: Lines,
) -> None:
    size = hvd.size()
    Loop().run(hvd.shard(Batches(4 * size + 1 + 4 * (size - 1)), policy="drop"))
    assert is_told(lines, f"1 row on rank {size - 1}, after 4")


@needs_peers
def test_last_batches_that_are_cut_are_told(lines: Lines) -> None:
    size = hvd.size()
    Loop().run(hvd.shard(Batches(4 * size + size + 1), policy="split"))
    if size == 2:
        assert is_told(lines, "2 rows on rank 1, 1 row on rank 0")
