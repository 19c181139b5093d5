"""Ranks train as always while `torch.distributed` is initialised.

Keras 3.16 then wraps models in torch's DistributedDataParallel by itself, and
sums metrics. Keras below 3.16 does not.
"""

from __future__ import annotations

import contextlib
import datetime
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import small_training as small
import torch.distributed

import hvd_keras as hvd

SGD = keras.optimizers.SGD
Group = Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture
def group(tmp_path: pathlib.Path) -> Group:
    """Initialises `torch.distributed` over all ranks, in a context."""
    path = hvd.broadcast_object(str(tmp_path / "store"))

    @contextlib.contextmanager
    def initialized() -> Iterator[None]:
        torch.distributed.init_process_group(
            "gloo",
            init_method=f"file://{path}",
            rank=hvd.rank(),
            world_size=hvd.size(),
            timeout=datetime.timedelta(seconds=60),
        )
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()

    return initialized


def compiled(optimizer: Any, seed: int = 3) -> keras.Model:
    model = small.model(seed)
    # A sum, not a mean: a second sum over the ranks shows.
    metrics = ["mae", keras.metrics.TruePositives(thresholds=[0.0])]
    model.compile(optimizer, "mse", metrics=metrics)
    return model


def small_data() -> tuple[np.ndarray, np.ndarray]:
    x, y = small.data()
    return x, (y > 0).astype(np.float32)


def own_rows() -> tuple[np.ndarray, np.ndarray]:
    """Returns rows that take one step more on each further rank."""
    x, y = small_data()
    first = hvd.rank() * (hvd.rank() + 1) * 4
    own = slice(first, first + 8 * (hvd.rank() + 1))
    return x[own], y[own]


def results(model: keras.Model, history: Any) -> list[np.ndarray]:
    values = [np.asarray(history[key]) for key in sorted(history)]
    return [*model.get_weights(), *values]


def fit(model: keras.Model, *data: Any, **options: Any) -> list[np.ndarray]:
    history = model.fit(*data, epochs=2, verbose=0, shuffle=False, **options)
    return results(model, history.history)


def with_metrics_of_all() -> list[np.ndarray]:
    x, y = small_data()
    return fit(
        compiled(hvd.DistributedOptimizer(SGD(0.1, momentum=0.9))),
        small.shares(x, y),
        validation_data=own_rows(),
        validation_batch_size=8,
        callbacks=[hvd.callbacks.MetricAverageCallback()],
    )


def with_own_metrics() -> list[np.ndarray]:
    model = compiled(hvd.DistributedOptimizer(SGD(0.1)))
    found = fit(model, small.shares(*small_data()))
    x, y = own_rows()
    found.append(model.evaluate(x, y, batch_size=8, verbose=0)[-1])
    if hvd.rank() == 0:
        found.append(model.predict(x, verbose=0))
    return found


def with_local_variables() -> list[np.ndarray]:
    model = small.model(seed=hvd.rank())
    optimizer = hvd.PartialDistributedOptimizer(
        SGD(0.1), local_layers=model.layers[0]
    )
    model.compile(optimizer, "mse")
    hvd.broadcast_variables(model.layers[-1].weights, 0)
    return fit(model, small.shares(*small_data()))


def with_a_process_set() -> list[np.ndarray]:
    last = hvd.ProcessSet([hvd.size() - 1])
    hvd.shutdown()
    hvd.init(process_sets=[last])
    optimizer = hvd.DistributedOptimizer(SGD(0.1), process_set=last)
    model = compiled(optimizer, seed=hvd.rank())
    found = fit(model, *own_rows(), batch_size=8)
    hvd.shutdown()
    hvd.init()
    return found


def with_uneven_ends() -> list[np.ndarray]:
    def batches() -> Iterator[Any]:
        x, y = own_rows()
        for first in range(0, len(x), 8):
            yield x[first : first + 8], y[first : first + 8]

    model = compiled(hvd.DistributedOptimizer(SGD(0.1)))
    callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    history = model.fit(batches(), verbose=0, callbacks=callbacks).history
    return results(model, history)


def after_keras_has_wrapped_it() -> list[np.ndarray]:
    x, y = small_data()
    model = compiled(SGD(0.0))
    model.fit(x, y, verbose=0, shuffle=False)
    model.optimizer.learning_rate = 0.1
    hvd.DistributedOptimizer(model.optimizer)
    one_step = {"steps_per_epoch": 1, "shuffle": False}
    model.fit(*own_rows(), batch_size=8, verbose=0, **one_step)
    model.evaluate(*own_rows(), batch_size=8, verbose=0)
    return model.get_weights()


CASES = [
    with_metrics_of_all,
    with_own_metrics,
    with_local_variables,
    with_a_process_set,
    with_uneven_ends,
    after_keras_has_wrapped_it,
]


@pytest.mark.parametrize("train", CASES)
def test_training_does_not_see_the_group(
    train: Callable[[], list[np.ndarray]], group: Group
) -> None:
    expected = train()
    with group():
        found = train()
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value, wanted)


def test_training_equals_one_process(group: Group) -> None:
    batch_size = small.BATCH // hvd.size() * hvd.size()
    x, y = (rows[: 2 * batch_size] for rows in small_data())
    average = hvd.callbacks.MetricAverageCallback()
    expected = fit(compiled(SGD(0.1)), x, y, batch_size=batch_size)
    model = compiled(hvd.DistributedOptimizer(SGD(0.1)))
    with group():
        found = fit(model, small.shares(x, y), callbacks=[average])
    for value, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-6)


def test_metrics_are_summed_once_without_an_optimizer(group: Group) -> None:
    average = hvd.callbacks.MetricAverageCallback()
    model = compiled(SGD(0.1))
    options = {"batch_size": 8, "verbose": 0, "callbacks": [average]}
    expected = model.evaluate(*own_rows(), **options)
    with group():
        assert model.evaluate(*own_rows(), **options) == expected


@pytest.mark.skipif(
    not hasattr(keras.Model, "_initialize_ddp"), reason="needs Keras 3.16"
)
def test_a_distribution_of_keras_is_refused(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", str(hvd.rank()))  # Keras reads it
    model = compiled(hvd.DistributedOptimizer(SGD(0.1)))
    with group():
        parallel = keras.distribution.DataParallel(
            devices=[f"cpu:{rank}" for rank in range(hvd.size())],
            auto_shard_dataset=False,
        )
        text = "must not be in a `keras.distribution`.*DataParallel"
        with parallel.scope(), pytest.raises(ValueError, match=text):
            model.fit(*small_data(), verbose=0)
