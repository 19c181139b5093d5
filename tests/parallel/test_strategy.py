"""Programs for `tf.distribute` give the results of one process on N ranks."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf
from selection import thorough_except

import hvd_keras as hvd

pytestmark = pytest.mark.thorough(1, 4)

optimizers = keras.optimizers


def synchronized_model() -> keras.Model:
    inputs = keras.Input((kt.NUM_FEATURES,))
    hidden = keras.layers.Dense(5)(inputs)
    hidden = keras.layers.BatchNormalization(synchronized=True)(hidden)
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


@dataclasses.dataclass(frozen=True)
class Case:
    optimizer: Callable[[], Any]
    model: Callable[[], keras.Model] = kt.functional_model
    policy: str = "float32"
    compile: dict[str, Any] = dataclasses.field(default_factory=dict)


CASES = {
    "global_clipnorm": Case(
        lambda: optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.3)
    ),
    "synchronized": Case(lambda: optimizers.SGD(0.05), synchronized_model),
    "embedding_accumulate": Case(
        lambda: optimizers.Adam(0.01, gradient_accumulation_steps=2),
        kt.embedding_model,
        compile={"steps_per_execution": 2},
    ),
    "float16": Case(lambda: optimizers.Adam(0.01), policy="mixed_float16"),
    "subclassed": Case(
        lambda: optimizers.AdamW(0.01, weight_decay=0.1, use_ema=True),
        kt.SubclassedModel,
        compile={"run_eagerly": True},
    ),
}


def after_fit(case: Case, data: Any, **options: Any) -> keras.Model:
    keras.config.set_dtype_policy(case.policy)
    try:
        model = kt.build(case.model)
        model.compile(case.optimizer(), "mse", **case.compile)
    finally:
        keras.config.set_dtype_policy("float32")
    model.fit(*data, verbose=0, **options)
    return model


@pytest.mark.thorough(1, 4)
@pytest.mark.parametrize(
    "name",
    thorough_except(
        CASES, "synchronized", "embedding_accumulate", "subclassed"
    ),
)
def test_fit_equals_one_process(name: str) -> None:
    case = CASES[name]
    x, y = kt.regression_data()
    options = {"batch_size": kt.BATCH, "shuffle": False}
    if case.policy == "mixed_float16":
        x, y = np.round(x * 2) / 16, np.round(y * 2) / 16
        y[3 * kt.BATCH - 1] = 1e30  # overflows on the last rank
    expected = after_fit(case, (x, y), **options)
    with hvd.Strategy().scope():
        model = after_fit(case, (x, y), **options)
    tolerance = 5e-3 if case.policy == "mixed_float16" else 2e-5
    kt.assert_close(model.get_weights(), expected.get_weights(), tolerance)
    kt.assert_equal_on_all_ranks(model.get_weights())


def classifier() -> keras.Model:
    inputs = keras.Input((kt.NUM_FEATURES,))
    return keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(inputs))


def compiled() -> keras.Model:
    model = kt.build(classifier)
    metrics = [
        keras.metrics.AUC(name="auc"),
        keras.metrics.Recall(name="recall"),
    ]
    model.compile("sgd", "binary_crossentropy", metrics=metrics)
    return model


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    x, _ = kt.regression_data(3 * kt.BATCH + 1)  # one row is left over
    return x, (x[:, :1] > 0.2).astype(np.float32)


def test_logs_and_predictions_are_over_all_samples(
    data: tuple[np.ndarray, np.ndarray], tmp_path: pathlib.Path
) -> None:
    x, y = data
    plain = compiled()
    with hvd.HvdStrategy().scope():
        model = compiled()
    options = {"batch_size": kt.BATCH, "verbose": 0}
    expected = plain.evaluate(x, y, return_dict=True, **options)
    callback = hvd.callbacks.MetricAverageCallback()
    for callbacks in ([], [callback]):
        logs = model.evaluate(
            x, y, return_dict=True, callbacks=callbacks, **options
        )
        for key, value in expected.items():
            np.testing.assert_allclose(logs[key], value, rtol=2e-5)
    wanted = plain.predict(x, **options)
    np.testing.assert_allclose(model.predict(x, **options), wanted, rtol=1e-5)
    np.testing.assert_allclose(model.predict(x[:1]), wanted[:1], rtol=1e-5)
    # All ranks shuffle in the same way, so no row is missing.
    path = tmp_path / f"{hvd.rank()}.weights.h5"
    checkpoint = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    history = model.fit(
        x, y, validation_data=data, callbacks=[checkpoint], **options
    )
    assert path.exists() == (hvd.rank() == 0)
    assert set(history.history) >= {"auc", "val_auc", "loss", "val_recall"}
    assert len({repr(h) for h in hvd.allgather_object(history.history)}) == 1


def test_arrays_are_shuffled_alike() -> None:
    rows = np.arange(64, dtype=np.float32)[:, None]
    seen: list[np.ndarray] = []

    class Model(keras.Model):
        def train_step(self, data: Any) -> dict[str, Any]:
            seen.append(data[0].numpy().ravel())
            return {"loss": 0.0}

    with hvd.HvdStrategy().scope():
        inputs = keras.Input((1,))
        model = Model(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse", run_eagerly=True)
    model.fit(rows, rows, batch_size=16, verbose=0)
    found = np.concatenate(hvd.allgather_object(np.concatenate(seen)))
    assert sorted(found.tolist()) == rows.ravel().tolist()
    assert found.tolist() != rows.ravel().tolist()


def test_variables_but_not_seeds_start_as_on_rank_0() -> None:
    keras.utils.set_random_seed(5)
    with hvd.HvdStrategy().scope():
        seed = keras.random.SeedGenerator(7).state
        keras.utils.set_random_seed(hvd.rank())
        model = classifier()
    kt.assert_equal_on_all_ranks(model.get_weights())
    states = hvd.allgather_object(seed.numpy().tolist())
    assert len({tuple(state) for state in states}) == hvd.size()


def test_sharded_data_are_not_sharded_again() -> None:
    x = np.arange(8 * hvd.size())
    share = hvd.shard(x, batch_size=4)
    strategy = hvd.HvdStrategy()
    again = strategy.experimental_distribute_dataset(share)
    assert [len(batch) for batch in again] == [4, 4]


def test_a_custom_loop_may_use_the_replica_context() -> None:
    strategy = hvd.HvdStrategy()
    rank, size = hvd.rank(), hvd.size()
    assert strategy.num_replicas_in_sync == size
    with strategy.scope():
        weight = tf.Variable(1.0)

    @tf.function
    def step(value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        context = tf.distribute.get_replica_context()
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, value * weight)
        return summed, context.all_gather(value[None], axis=0)

    summed, gathered = strategy.run(step, args=(tf.constant(rank + 1.0),))
    assert float(summed) == size * (size + 1) / 2
    assert gathered.numpy().tolist() == [r + 1.0 for r in range(size)]
    total = strategy.reduce("SUM", tf.constant(2.0), axis=None)
    assert float(total) == 2.0 * size
    columns = strategy.gather(tf.fill([2, 1], rank), axis=1)
    assert columns.numpy().tolist() == [list(range(size))] * 2


def test_a_distributed_optimizer_is_refused() -> None:
    with hvd.HvdStrategy().scope():
        model = classifier()
        with pytest.raises(ValueError, match="plain optimizer"):
            model.compile(hvd.DistributedOptimizer(optimizers.SGD(0.1)), "mse")
