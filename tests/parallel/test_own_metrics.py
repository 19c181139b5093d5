"""Tests of metrics that cannot be summed, for each backend."""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd

ops = keras.ops
needs_peers = pytest.mark.ranks(2)


class OfPython(keras.metrics.Metric):
    """Keeps its state where Keras does not look."""

    def __init__(self) -> None:
        super().__init__(name="of_python")
        self.errors: list[float] = []

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None):
        errors = ops.convert_to_numpy(ops.abs(y - y_pred))
        self.errors += errors.ravel().tolist()

    def result(self) -> Any:
        return ops.convert_to_tensor(np.float32(np.mean(self.errors or [0.0])))

    def reset_state(self) -> None:
        self.errors = []


def mean_error(y: Any, y_pred: Any) -> Any:
    """Returns one value for a batch."""
    return ops.mean(ops.abs(y - y_pred))


def evaluated(metric: Any, num_rows: int, policy: str = "split") -> Any:
    """Returns a value of all ranks, and that of one process."""
    generator = np.random.default_rng(3)
    x = generator.normal(size=(num_rows, 3)).astype("float32")
    y = (x[:, :1] * np.arange(num_rows)[:, None]).astype("float32")
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
    is_eager = isinstance(metric, OfPython) and (
        keras.backend.backend() != "torch"
    )
    options: dict[str, Any] = {"run_eagerly": True} if is_eager else {}
    model.compile(optimizer, "mse", metrics=[metric], **options)
    share = hvd.shard((x, y), batch_size=24 // hvd.size(), policy=policy)
    average = hvd.callbacks.MetricAverageCallback()
    logs = model.fit(share, verbose=0, callbacks=[average]).history
    alone = model.evaluate(x, y, 24, verbose=0, return_dict=True)
    name = model.metrics[-1].metrics[0].name
    return logs[name][0], alone[name]


@needs_peers
def test_metrics_without_variables_are_averaged_and_named(caplog: Any) -> None:
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    if keras.backend.backend() == "jax":
        pytest.skip("JAX refuses a metric that leaves its program")
    value, expected = evaluated(OfPython(), 48)
    assert len(set(hvd.allgather_object(value))) == 1
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    told = [r.message for r in caplog.records if "add_variable" in r.message]
    assert len(told) == (hvd.rank() == 0)
    assert all("'of_python' (OfPython), which has no" in each for each in told)


@needs_peers
@pytest.mark.parametrize(
    ("num_rows", "policy"), [(48, "split"), (49, "split"), (49, "pad")]
)
def test_functions_of_a_batch_are_averaged_and_named(
    num_rows: int, policy: str, caplog: Any
) -> None:
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    value, expected = evaluated(mean_error, num_rows, policy)
    assert len(set(hvd.allgather_object(value))) == 1
    if num_rows == 48:
        np.testing.assert_allclose(value, expected, rtol=1e-5)
    told = [r.message for r in caplog.records if "add_variable" in r.message]
    assert len(told) == (hvd.rank() == 0)
    assert all("'mean_error', whose function" in each for each in told)


@needs_peers
def test_metrics_of_rows_are_not_named(caplog: Any) -> None:
    caplog.set_level(logging.WARNING, logger="hvd_keras")

    def error(y: Any, y_pred: Any) -> Any:
        return ops.mean(ops.abs(y - y_pred), axis=-1)

    value, expected = evaluated(error, 49)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    assert not any("add_variable" in r.message for r in caplog.records)


class Counting(keras.metrics.Metric):
    """Counts steps, or rows, or averages over steps what it is told."""

    def __init__(self, what: str) -> None:
        super().__init__(name=what)
        self.what = what
        self.count = self.add_variable((), "zeros", name="count")
        self.total = self.add_variable((), "zeros", name="total")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None):
        rows = ops.cast(ops.shape(y)[0], "float32")
        self.count.assign_add(rows if self.what == "rows" else 1.0)
        self.total.assign_add(rows)

    def result(self) -> Any:
        count = ops.convert_to_tensor(self.count)
        return self.total / count if self.what == "mean" else count


@needs_peers
@pytest.mark.parametrize(
    ("what", "batch_size", "is_told"),
    [("steps", 2, True), ("mean", 2, False), ("rows", 1, False)],
)
def test_a_metric_that_counts_steps_is_named(
    what: str, batch_size: int, is_told: bool, caplog: Any
) -> None:
    caplog.set_level(logging.WARNING, logger="hvd_keras")
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer("sgd")
    model.compile(optimizer, "mse", metrics=[Counting(what)])
    x = np.ones((3 * batch_size * hvd.size(), 1), "float32")
    share = hvd.shard((x, x), batch_size=batch_size)
    average = hvd.callbacks.MetricAverageCallback()
    model.fit(share, epochs=3, callbacks=[average], verbose=0)
    told = [r.message for r in caplog.records if "counts steps" in r.message]
    assert len(told) == (is_told and hvd.rank() == 0)
    assert all("'steps' (Counting)" in each for each in told)


class OwnTest(keras.Model):
    """Its `test_step` counts each batch alike."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.mean = keras.metrics.Mean(name="mean")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def test_step(self, data: Any) -> Any:
        x, y = data
        self.mean.update_state(self.compute_loss(x, y, self(x)))
        return {"mean": self.mean.result()}


@needs_peers
@pytest.mark.skipif(
    keras.backend.backend() == "jax", reason="A `test_step` has a state there"
)
@pytest.mark.parametrize(
    ("num_rows", "batch_size"), [(5, 40), (45, 24), (48, 24), (60, 16)]
)
def test_what_validation_has_traced_is_not_used_for_other_rows(
    num_rows: int, batch_size: int
) -> None:
    keras.utils.set_random_seed(3)
    generator = np.random.default_rng(3)
    x = generator.normal(size=(60, 3)).astype("float32")
    x[32:] *= 5
    y = x[:, :1] ** 2
    model = OwnTest()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.0)), "mse")
    average = hvd.callbacks.MetricAverageCallback()
    part = x[:num_rows], y[:num_rows]
    shared = hvd.shard(part, batch_size=batch_size // hvd.size())
    model.fit(shared, validation_data=shared, callbacks=[average], verbose=0)
    share = hvd.shard((x, y), batch_size=32 // hvd.size())
    found = model.evaluate(share, callbacks=[average], verbose=0)
    expected = model.evaluate(x, y, batch_size=32, verbose=0)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@needs_peers
def test_an_evaluation_of_other_models_is_told() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    model.set_weights([np.full((2, 1), 1.0 + hvd.rank()), np.zeros(1)])
    x = np.ones((24, 2))
    data = hvd.shard((x, x[:, :1]), batch_size=4)
    options = {
        "callbacks": [hvd.callbacks.MetricAverageCallback()],
        "verbose": 0,
    }
    for _ in range(2):
        with pytest.raises(hvd.MismatchError, match="the same model on all"):
            model.evaluate(data, **options)
    hvd.broadcast_variables(model.variables, root_rank=0)
    np.testing.assert_allclose(model.evaluate(data, **options), 1.0)
