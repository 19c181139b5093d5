"""What a new user does wrong first gets an error that says the cure."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd


@pytest.fixture
def _no_job() -> Iterator[None]:
    was_in_job = hvd.is_initialized()
    hvd.shutdown()
    yield
    if was_in_job:
        hvd.init()


@pytest.mark.usefixtures("_no_job")
@pytest.mark.parametrize("run_eagerly", [True, False])
def test_a_forgotten_init_is_named(run_eagerly: bool) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    optimizer = hvd.DistributedOptimizer("sgd")
    model.compile(optimizer, "mse", run_eagerly=run_eagerly)
    words = r"`init\(\)` must be called before training with a distributed"
    with pytest.raises(hvd.NotInitializedError, match=words):
        model.fit(np.ones((2, 1)), np.ones((2, 1)), verbose=0)


class LegacyModel:
    """What our callbacks see of a model of tf_keras."""

    optimizer = None


LegacyModel.__module__ = "tf_keras.src.engine.training"


@pytest.mark.parametrize(
    "make",
    [
        hvd.callbacks.BroadcastGlobalVariablesCallback,
        hvd.callbacks.MetricAverageCallback,
        hvd.callbacks.StepsGuard,
        hvd.callbacks.ThroughputCallback,
        lambda: hvd.callbacks.LearningRateWarmupCallback(0.1),
        lambda: hvd.callbacks.ModelCheckpoint("model.keras"),
    ],
)
def test_a_model_of_tf_keras_is_refused(make: Callable[[], Any]) -> None:
    # It is what tf_keras calls first.
    with pytest.raises(TypeError, match=r"Received: tf_keras.*DistributedGrad"):
        make().set_model(LegacyModel())


class Loader:
    """Yields batches, and nothing else."""

    def __iter__(self) -> Iterator[Any]:
        yield np.ones((2, 1))


def test_a_loader_that_only_yields_gets_its_cure() -> None:
    with pytest.raises(TypeError, match=r"Received: Loader\. .*from_generator"):
        hvd.shard(Loader(), batch_size=2)


def test_inputs_and_targets_are_one_argument() -> None:
    rows = np.ones((2, 1))
    with pytest.raises(TypeError, match=r"`hvd\.shard\(\(x, y\), batch_size"):
        hvd.shard(rows, rows, batch_size=2)


@pytest.mark.parametrize("is_filtered", [True, False])
def test_tracebacks_leave_our_frames_out_as_keras_does(
    is_filtered: bool,
) -> None:
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    if not is_filtered:
        keras.config.disable_traceback_filtering()
    try:
        with pytest.raises(ValueError, match="shape") as caught:
            model.fit(np.ones((2, 3)), np.ones((2, 1)), verbose=0)
    finally:
        keras.config.enable_traceback_filtering()
    frames = traceback.extract_tb(caught.value.__traceback__)
    ours = [one for one in frames if "/hvd_keras/_keras/" in one.filename]
    assert bool(ours) != is_filtered
    assert (
        frames[0].name == "test_tracebacks_leave_our_frames_out_as_keras_does"
    )
