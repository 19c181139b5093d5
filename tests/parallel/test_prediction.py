"""`hvd.predict` returns what one process predicts."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from conftest import parity_sets
from selection import thorough_except

import hvd_keras as hvd

pytestmark = pytest.mark.thorough(4)


@pytest.fixture(scope="module")
def model() -> keras.Model:
    """Two inputs, two outputs, equal on all ranks."""
    keras.utils.set_random_seed(3)
    first = keras.Input((3,), name="first")
    second = keras.Input((2,), name="second")
    joined = keras.layers.Concatenate()([first, second])
    outputs = {
        "a": keras.layers.Dense(4, activation="tanh")(joined),
        "b": keras.layers.Reshape((1, 5))(joined),
    }
    return keras.Model([first, second], outputs)


def inputs(num_rows: int) -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng(1).normal(size=(64, 5)).astype(np.float32)
    return rows[:num_rows, :3], rows[:num_rows, 3:]


def dataset(num_rows: int, *, batch_size: int = 8) -> tf.data.Dataset:
    x, targets = inputs(num_rows), np.zeros((num_rows, 1))
    return tf.data.Dataset.from_tensor_slices((x, targets)).batch(batch_size)


def without_length(data: tf.data.Dataset) -> tf.data.Dataset:
    return data.filter(lambda *_: True)


def check(found: Any, model: keras.Model, num_rows: int) -> None:
    """Asserts that `found` is what one process predicts."""
    joined = np.concatenate(inputs(num_rows), axis=1)
    kernel, bias = model.get_weights()
    expected = {
        "a": np.tanh(joined @ kernel + bias),
        "b": joined[:, np.newaxis],
    }
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        assert found[key].dtype == np.float32
        np.testing.assert_allclose(found[key], value, rtol=1e-5, atol=1e-6)


def test_one_process_is_as_expected(model: keras.Model) -> None:
    check(model.predict(inputs(53), verbose=0), model, 53)


@pytest.mark.parametrize("num_rows", thorough_except([1, 2, 3, 53], 1, 53))
def test_arrays(model: keras.Model, num_rows: int) -> None:
    check(hvd.predict(model, inputs(num_rows), batch_size=8), model, num_rows)


def test_a_list_of_tensors(model: keras.Model) -> None:
    tensors = [tf.constant(array) for array in inputs(6)]
    check(hvd.predict(model, tensors), model, 6)


@pytest.mark.parametrize("has_two", [False, True])
def test_a_predict_step_gets_what_model_predict_gives(has_two: bool) -> None:
    class Own(keras.Model):
        def predict_step(self, data: Any) -> Any:
            given.append(tf.nest.map_structure(type, data))
            x = data[0] if has_two else data
            return x[0] + x[1] if has_two else x

    given: list[Any] = []
    x = np.arange(53.0)[:, None]
    rows: Any = (x, x) if has_two else x
    expected = Own().predict(rows, verbose=0)
    found = hvd.predict(Own(), rows, batch_size=8)
    np.testing.assert_array_equal(found, expected)
    assert len(set(map(str, given))) == 1


@pytest.mark.parametrize("num_rows", thorough_except([1, 2, 53], 1, 53))
def test_a_dataset(model: keras.Model, num_rows: int) -> None:
    check(hvd.predict(model, dataset(num_rows), batch_size=8), model, num_rows)


def test_a_dataset_of_unknown_length(model: keras.Model) -> None:
    data = without_length(dataset(53))
    check(hvd.predict(model, data, batch_size=8), model, 53)


def test_one_rank_gets_the_result(model: keras.Model) -> None:
    root = hvd.size() - 1
    found = hvd.predict(model, inputs(9), root_rank=root)
    if hvd.rank() == root:
        check(found, model, 9)
    else:
        assert found is None


CASES = [f"{n} {policy}" for n in (33, 49, 53) for policy in ("split", "pad")]


@pytest.mark.parametrize("case", thorough_except(CASES, "33 split", "53 pad"))
def test_what_shard_returned(model: keras.Model, case: str) -> None:
    num_rows, policy = int(case.split()[0]), case.split()[1]
    data = (inputs(num_rows), np.zeros(num_rows))
    share = hvd.shard(data, batch_size=4, policy=policy)
    check(hvd.predict(model, share), model, num_rows)


def test_what_shard_returned_and_map_has_changed(model: keras.Model) -> None:
    share = hvd.shard((inputs(33), np.zeros(33)), batch_size=4)
    mapped = share.map(lambda *batch: batch).prefetch(1)
    check(hvd.predict(model, mapped), model, 33)


def test_what_shard_returned_for_a_dataset(model: keras.Model) -> None:
    data = hvd.shard(dataset(50).unbatch(), batch_size=4, policy="join")
    check(hvd.predict(model, data), model, 50)


def test_data_whose_order_is_unknown_are_refused(model: keras.Model) -> None:
    share = hvd.shard((inputs(50), np.zeros(50)), batch_size=4)
    with pytest.raises(ValueError, match="no more than `map`"):
        hvd.predict(model, share.unbatch().batch(3))
    if hvd.size() > 1:
        data = without_length(dataset(50).unbatch())
        share = hvd.shard(data, batch_size=4)
        with pytest.raises(ValueError, match="known number of rows"):
            hvd.predict(model, share)


def test_several_steps_per_execution(model: keras.Model) -> None:
    model.steps_per_execution = 3
    try:
        check(hvd.predict(model, inputs(53), batch_size=4), model, 53)
        assert model.steps_per_execution == 3
    finally:
        model.steps_per_execution, model.predict_function = 1, None


def test_steps_and_callbacks(model: keras.Model) -> None:
    seen: list[int] = []

    class Look(keras.callbacks.Callback):
        def on_predict_batch_begin(self, batch: int, logs: Any = None) -> None:
            seen.append(batch)

    for callbacks in (Look(), [Look()]):
        found = hvd.predict(
            model, inputs(53), batch_size=4, steps=2, callbacks=callbacks
        )
        check(found, model, min(53, 8 * hvd.size()))
    assert seen == [0, 1] * 2


@pytest.mark.ranks(2, 3, 4)
def test_ranks_that_stop_apart_are_an_error(model: keras.Model) -> None:
    class Stop(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch: int, logs: Any = None) -> None:
            self.model.stop_predicting = hvd.rank() == 0

    with pytest.raises(hvd.MismatchError, match=r"\[1, [2-9]"):
        hvd.predict(model, inputs(53), batch_size=4, callbacks=Stop())
    with pytest.raises(hvd.MismatchError, match=r"\[1, 2"):
        hvd.predict(
            model, inputs(53), batch_size=4, steps=1 + min(hvd.rank(), 1)
        )


def test_an_error_of_the_model_is_not_hidden() -> None:
    class Broken(keras.Model):
        def call(self, x: Any) -> Any:
            raise UnboundLocalError("mine")

    model = Broken()
    model.compile(run_eagerly=True)
    with pytest.raises(UnboundLocalError, match="mine"):
        hvd.predict(model, inputs(8)[0])


@pytest.mark.ranks(3, 4)
def test_a_process_set_shares_the_data(model: keras.Model) -> None:
    with parity_sets() as sets:
        found = hvd.predict(
            model, inputs(53), process_set=sets["parity"], root_rank=None
        )
        check(found, model, 53)


def test_texts() -> None:
    words = ["a", "b", "c"]
    model = keras.Sequential(
        [
            keras.Input((1,), dtype="string"),
            keras.layers.StringLookup(vocabulary=words),
            keras.layers.StringLookup(vocabulary=words, invert=True),
        ]
    )
    data = tf.constant([[word] for word in "abcab"])
    found = hvd.predict(model, data)
    assert found.tolist() == model.predict(data, verbose=0).tolist()


def test_ragged_rows() -> None:
    class Twice(keras.Model):
        def call(self, x: Any) -> Any:
            return x * 2.0

    data = tf.ragged.constant([[1.0], [], [2.0, 3.0], [4.0], [], [5.0]])
    found = hvd.predict(Twice(), data, batch_size=2)
    assert found.to_list() == (data * 2.0).to_list()


def test_data_without_rows_are_refused(model: keras.Model) -> None:
    with pytest.raises(ValueError, match="Received: 0 rows"):
        hvd.predict(model, inputs(0))
    with pytest.raises(ValueError, match="a batch for each rank"):
        hvd.predict(model, dataset(0))
    with pytest.raises(TypeError, match="Received: generator"):
        hvd.predict(model, (each for each in inputs(8)))


@pytest.mark.ranks(2, 4)
def test_a_model_in_a_strategy() -> None:
    keras.utils.set_random_seed(3)
    with hvd.Strategy().scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    x = inputs(16)[0]
    expected = x @ model.layers[0].kernel.numpy()
    found = hvd.predict(model, x, batch_size=16)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
def test_a_rank_that_has_loaded_other_weights() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    x = np.ones((8, 2), np.float32)
    guard = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    share = hvd.shard((x, x[:, :1]), batch_size=2)
    average = [hvd.callbacks.MetricAverageCallback()]
    model.fit(share, callbacks=[guard], verbose=0)
    hvd.predict(model, x, verbose=0)
    if hvd.rank() == 0:  # the best epoch's, for example
        model.set_weights([2.0 * weight for weight in model.get_weights()])
    for compute in (
        lambda: hvd.predict(model, x, verbose=0),
        lambda: model.evaluate(share, callbacks=average, verbose=0),
    ):
        with pytest.raises(hvd.MismatchError, match="the same model on all"):
            compute()
    hvd.broadcast_variables(model.variables, 0)
    hvd.predict(model, x, verbose=0)
    model.evaluate(share, callbacks=average, verbose=0)
