"""Tests of metrics of batches that copies fill, for each backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd

ops = keras.ops
needs_peers = pytest.mark.ranks(2)
IS_JAX = keras.backend.backend() == "jax"


class Counting(keras.metrics.Metric):
    """Takes the mean over rows, whatever they weigh."""

    def __init__(self) -> None:
        super().__init__(name="error")
        self.total = self.add_weight(shape=(), initializer="zeros")
        self.count = self.add_weight(shape=(), initializer="zeros")

    def add(self, errors: Any, weights: Any) -> None:
        self.count.assign_add(ops.sum(weights * ops.ones_like(errors)))
        self.total.assign_add(ops.sum(weights * errors))

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None):
        del sample_weight
        self.add(ops.abs(y - y_pred), 1.0)

    def result(self) -> Any:
        return self.total / self.count


class WithoutWeights(Counting):
    """Does not take weights."""

    def update_state(self, y: Any, y_pred: Any):
        self.add(ops.abs(y - y_pred), 1.0)


class Means(WithoutWeights):
    """Adds a mean of each batch, which is none without rows."""

    def update_state(self, y: Any, y_pred: Any):
        self.add(
            ops.mean(ops.abs(y - y_pred)), ops.cast(ops.size(y), "float32")
        )


class Weighing(Counting):
    """Counts a row by its weight."""

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None):
        weights = 1.0 if sample_weight is None else sample_weight
        weights = ops.cast(ops.reshape(weights, [-1, 1]), "float32")
        self.add(ops.abs(y - y_pred), weights)


def of_rows(y: Any, y_pred: Any) -> Any:
    return ops.mean(ops.abs(y - y_pred), axis=-1)


class OwnSteps(keras.Model):
    """Updates a metric in steps of its own."""

    def __init__(self, metric: Any) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.error = metric

    def call(self, x: Any, training: bool = False) -> Any:
        return self.dense(x)

    def update(self, x: Any, y: Any, y_pred: Any) -> Any:
        self.compute_loss(x, y, y_pred, None, training=False)
        if type(self.error) is keras.metrics.Mean:
            self.error.update_state(ops.abs(y - y_pred))
        else:
            self.error.update_state(y, y_pred)
        return {"error": self.error.result()}

    def test_step(self, *args: Any) -> Any:
        x, y = args[-1]
        if not IS_JAX:
            return self.update(x, y, self(x, training=False))
        trained, others, values = args[0]
        y_pred, others = self.stateless_call(trained, others, x)
        variables = self.metrics_variables
        mapping = list(zip(variables, values, strict=True))
        with keras.StatelessScope(state_mapping=mapping) as scope:
            logs = self.update(x, y, y_pred)
        values = [scope.get_current_value(v) for v in variables]
        return logs, (trained, others, values)


def model_of(metric: Any, kind: str | None) -> keras.Model:
    keras.utils.set_random_seed(3)
    if kind is None:
        model: Any = OwnSteps(metric)
        model(np.zeros([1, 3], "float32"))
        if isinstance(metric, keras.metrics.R2Score):  # makes its variables
            metric.update_state(np.zeros([1, 1]), np.zeros([1, 1]))
            metric.reset_state()
    else:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    options = {} if kind is None else {kind: [metric]}
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
    model.compile(optimizer, "mse", **options)
    return model


def rows() -> tuple[Any, Any]:
    generator = np.random.default_rng(5)
    num = 8 * hvd.size() + hvd.size() + 1
    x = generator.normal(size=(num, 3)).astype("float32")
    return x, (x[:, :1] * np.arange(num)[:, None]).astype("float32")


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from hvd_keras._common import log

    found: list[str] = []
    monkeypatch.setattr(log, "warning", found.append)
    return found


def is_right(model: Any, data: Any, **weights: Any) -> bool:
    """Whether all ranks evaluate padded data as one process does."""
    given = (*data, *weights.values())
    share = hvd.shard(given, batch_size=4, policy="pad")
    average = hvd.callbacks.MetricAverageCallback()
    ours = model.evaluate(
        share, verbose=0, return_dict=True, callbacks=[average]
    )
    alone = model.evaluate(*data, 64, verbose=0, return_dict=True, **weights)
    name = "error" if "error" in alone else list(alone)[-1]
    return bool(np.allclose(ours[name], alone[name], rtol=1e-4))


@needs_peers
@pytest.mark.parametrize("kind", ["metrics", "weighted_metrics", None])
@pytest.mark.parametrize(
    "make",
    [
        Weighing,
        keras.metrics.R2Score,
        keras.metrics.MeanAbsoluteError,
        lambda: keras.metrics.MeanMetricWrapper(of_rows, name="error"),
    ],
)
def test_metrics_that_weigh_rows_leave_filling_out(
    lines: list[str], make: Callable[[], Any], kind: str | None
) -> None:
    assert is_right(model_of(make(), kind), rows())
    assert not any("fill batches" in line for line in lines)


@needs_peers
def test_means_of_values_leave_filling_out() -> None:
    assert is_right(model_of(keras.metrics.Mean(), None), rows())


@needs_peers
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (Counting, "metrics"),
        (Counting, "weighted_metrics"),
        (Counting, None),
        (WithoutWeights, None),
        (Means, None),
    ],
)
def test_metrics_that_count_rows_are_right_or_told(
    lines: list[str], make: Callable[[], Any], kind: str | None
) -> None:
    has_right = is_right(model_of(make(), kind), rows())
    told = [line for line in lines if "fill batches" in line]
    assert has_right != IS_JAX
    assert len(told) == IS_JAX
    for line in told:
        assert "'error'" in line
        assert 'policy="split"' in line


@needs_peers
@pytest.mark.parametrize("make", [Counting, Weighing])
def test_weights_of_the_user_stay(
    lines: list[str], make: Callable[[], Any]
) -> None:
    data = rows()
    weights = np.arange(len(data[0])).astype("float32")
    model = model_of(make(), "weighted_metrics")
    is_known = make is Weighing or not IS_JAX
    assert is_right(model, data, sample_weight=weights) == is_known


@needs_peers
def test_validation_in_fit_leaves_filling_out() -> None:
    if IS_JAX:
        return
    model = model_of(Counting(), "metrics")
    share = hvd.shard(rows(), batch_size=4, policy="pad")
    average = hvd.callbacks.MetricAverageCallback()
    logs = model.fit(
        share, validation_data=share, verbose=0, callbacks=[average]
    ).history
    alone = model.evaluate(*rows(), 64, verbose=0, return_dict=True)["error"]
    assert logs["error"] == pytest.approx([alone], rel=1e-4)
    assert logs["val_error"] == pytest.approx([alone], rel=1e-4)
