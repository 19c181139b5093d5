"""What a new user does wrong first gets an error that says the cure."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras._common import log
from hvd_keras._gradients.start_check import unequal_start


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


def test_a_class_is_no_callback() -> None:
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    kinds = [hvd.callbacks.MetricAverageCallback]
    with pytest.raises(TypeError, match=r"write `MetricAverageCallback\(\)`"):
        model.fit(np.ones((2, 1)), np.ones(2), callbacks=kinds, verbose=0)


class Rows:
    """Has rows, as datasets of torch and of Hugging Face have."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return {"x": np.ones(2), "y": index}


def test_rows_that_come_one_by_one_get_their_cure() -> None:
    with pytest.raises(TypeError, match=r"Received: Rows\. .*DataLoader"):
        hvd.shard(Rows(), batch_size=2)


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


def _rows() -> Any:
    tf = pytest.importorskip("tensorflow")
    rows = np.ones((12, 3), "f"), np.ones((12, 1), "f")
    return tf.data.Dataset.from_tensor_slices(rows)


CURE = r"Pass `batched=True`, .* Received: elements made by `.batch\(4\)`"


@pytest.mark.usefixtures("_job")
@pytest.mark.parametrize("is_changed", [False, True])
def test_batches_are_not_taken_for_rows(is_changed: bool) -> None:
    data = _rows().batch(4)
    if is_changed:
        data = data.map(lambda x, y: (x * 2, y)).cache().prefetch(1)
    with pytest.raises(ValueError, match=CURE):
        hvd.shard(data, global_batch_size=4)
    hvd.shard(data, batched=True, global_batch_size=4)
    hvd.shard(data.unbatch(), global_batch_size=4)


@pytest.mark.usefixtures("_job")
def test_batches_of_one_size_may_be_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tf = pytest.importorskip("tensorflow")
    found: list[str] = []
    monkeypatch.setattr(log, "warning", found.append)
    windows = tf.data.Dataset.range(24).batch(4, drop_remainder=True)
    hvd.shard(windows.map(lambda w: (w[:-1], w[1:])), global_batch_size=2)
    assert not found
    hvd.shard(_rows().batch(4, drop_remainder=True), global_batch_size=2)
    assert len(found) == 1
    assert re.search(CURE, found[0])


@pytest.mark.usefixtures("_job")
def test_a_py_dataset_takes_no_batch_size() -> None:
    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return np.ones((2, 3)), np.ones((2, 1))

    with pytest.raises(ValueError, match=r"must be None for a PyDataset"):
        hvd.shard(Batches(), batch_size=2)


@pytest.mark.parametrize(
    ("name", "is_rate"),
    [("adam/learning_rate", True), ("dense/kernel", False)],
)
def test_a_rate_by_rank_is_not_cured_by_a_broadcast(
    name: str, is_rate: bool
) -> None:
    text = str(unequal_start(f"{name!r}, whose values on rank 1 are others"))
    assert ("with the same learning rate" in text) == is_rate
    assert ("BroadcastGlobalVariablesCallback" in text) != is_rate


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: hvd.shard([1.0], batch_size=1), "shard"),
        (lambda: hvd.broadcast_object(1), "broadcast_object"),
        (hvd.size, "size"),
    ],
)
def test_a_call_before_init_is_named_as_it_was_made(
    call: Callable[[], object], name: str
) -> None:
    words = rf"`init\(\)` must be called before `{re.escape(name)}\(\)`"
    with pytest.raises(hvd.NotInitializedError, match=words):
        call()
