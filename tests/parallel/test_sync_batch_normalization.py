"""Batches are normalised as if one process had all rows."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import keras
import keras_training as kt
import numpy as np
import pytest
import tensorflow as tf
from conftest import Run, run_eagerly, run_in_function

import hvd_keras as hvd

pytestmark = pytest.mark.thorough(1, 4)

needs_peers = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
BatchNormalization = keras.layers.BatchNormalization


def synchronized(**options: Any) -> keras.layers.Layer:
    return BatchNormalization(synchronized=True, **options)


def model_with(layer: Callable[..., Any]) -> Callable[[], keras.Model]:
    def make() -> keras.Model:
        inputs = keras.Input((kt.NUM_FEATURES,))
        hidden = keras.layers.Dense(5)(inputs)
        hidden = layer(momentum=0.8)(hidden)
        hidden = keras.layers.Activation("tanh")(hidden)
        hidden = layer(momentum=0.8)(hidden)
        return keras.Model(inputs, keras.layers.Dense(1)(hidden))

    return make


def endless(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the same data with unknown length."""
    return dataset.filter(lambda x, y: True)


def weights_after_fit(
    layer: Callable[..., Any],
    data: tf.data.Dataset,
    wrap: Callable[[Any], Any] = lambda optimizer: optimizer,
    **options: Any,
) -> list[np.ndarray]:
    model = kt.build(model_with(layer))
    optimizer = keras.optimizers.SGD(0.05, momentum=0.9)
    model.compile(wrap(optimizer), "mse", **options)
    model.fit(endless(data), verbose=0)
    return model.get_weights()


@pytest.fixture(scope="module")
def expected_weights() -> list[np.ndarray]:
    data = kt.whole_batches(*kt.regression_data())
    return weights_after_fit(BatchNormalization, data)


@pytest.mark.thorough(1, 4)
@pytest.mark.parametrize(
    ("layer", "options"),
    [
        (hvd.SyncBatchNormalization, {}),
        pytest.param(
            hvd.SyncBatchNormalization,
            {"run_eagerly": True},
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            hvd.SyncBatchNormalization,
            {"jit_compile": True},
            marks=pytest.mark.thorough,
        ),
        (synchronized, {"steps_per_execution": 4}),
    ],
)
def test_fit_equals_one_process(
    expected_weights: list[np.ndarray],
    layer: Callable[..., Any],
    options: dict[str, Any],
) -> None:
    data = kt.shares(*kt.regression_data())
    wrap = hvd.DistributedOptimizer
    weights = weights_after_fit(layer, data, wrap, **options)
    # The weights include the moving statistics.
    kt.assert_close(weights, expected_weights, 2e-5)
    kt.assert_equal_on_all_ranks(weights)


class OneProcess(BatchNormalization):
    """Computes moments by the book.

    Keras adds 1e-7 to the sum of a mask. It also takes a mean for a constant,
    which is wrong in second derivatives.
    """

    def _moments(self, inputs: Any, mask: Any) -> Any:
        axes = [axis for axis in range(3) if axis != self.axis % 3]
        mask = tf.ones(inputs.shape[:-1], bool) if mask is None else mask
        mask = tf.broadcast_to(tf.cast(mask, bool)[..., None], inputs.shape)
        weights = tf.cast(mask, inputs.dtype)
        count = tf.reduce_sum(weights, axes, keepdims=True)
        mean = tf.reduce_sum(weights * inputs, axes, keepdims=True)
        mean = tf.math.divide_no_nan(mean, count)
        squares = weights * tf.square(inputs - mean)
        variance = tf.reduce_sum(squares, axes, keepdims=True)
        variance = tf.math.divide_no_nan(variance, count)
        return tf.squeeze(mean), tf.squeeze(variance)


def calls(
    layer: keras.layers.Layer, run: Run, x: np.ndarray, *mask: np.ndarray
) -> dict[str, np.ndarray]:
    """Returns the outputs for this rank's rows, and gradients of a sum."""

    def step(x: tf.Tensor, *mask: tf.Tensor) -> dict[str, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                outputs = layer(
                    x, training=True, mask=mask[0] if mask else None
                )
                if mask:
                    kept = tf.broadcast_to(mask[0][..., None], tf.shape(x))
                    outputs = tf.where(kept, outputs, 0.0)
                loss = tf.reduce_sum(tf.sin(outputs) * tf.cos(x))
            gradients = inner.gradient(loss, [x, layer.gamma.value])
            penalty = tf.reduce_sum(tf.square(gradients[0]))
        return {
            "outputs": outputs,
            "by_x": gradients[0],
            "by_gamma": gradients[1],
            "second": tape.gradient(penalty, x),
        }

    results: dict[str, np.ndarray] = run(step, x, *mask)
    return results


@pytest.mark.thorough(4)
@needs_peers  # on one rank Keras normalises
@pytest.mark.parametrize("run", [run_eagerly, run_in_function])
@pytest.mark.parametrize(
    ("axis", "num_rows", "has_mask"),
    [(-1, 13, False), (1, 13, False), (-1, 13, True), (1, 3, True)],
)
def test_uneven_shares_equal_the_whole(
    run: Run, axis: int, num_rows: int, has_mask: bool
) -> None:
    generator = np.random.default_rng(5)
    x = generator.normal(size=(num_rows, 4, 3)) * [1.0, 0.01, 9.0] + [0, 30, 5]
    mask = generator.integers(0, 2, size=(num_rows, 4)).astype(bool)
    arrays = [x, mask][: 1 + has_mask]
    options: dict[str, Any] = {"axis": axis, "dtype": "float64"}
    options["gamma_initializer"] = "random_normal"
    rows = kt.uneven_share(num_rows)  # with 3 rows some ranks have none

    def built(layer: Callable[..., Any]) -> keras.layers.Layer:
        keras.utils.set_random_seed(3)
        made = layer(**options)
        made.build((None, 4, 3))
        return made

    expected = built(OneProcess)
    wanted = calls(expected, run, *arrays)
    layer = built(hvd.SyncBatchNormalization)
    found = calls(layer, run, *(array[rows] for array in arrays))
    for key in ("outputs", "by_x", "second"):
        scale = np.abs(wanted[key]).max()
        np.testing.assert_allclose(
            found[key] / scale,
            wanted[key][rows] / scale,
            atol=1e-9,
            err_msg=key,
        )
    by_gamma = hvd.allreduce(found["by_gamma"], hvd.Sum)
    kt.assert_close([by_gamma], [wanted["by_gamma"]], 1e-6)
    statistics = [w.numpy() for w in layer.non_trainable_weights]
    kt.assert_close(
        statistics, [w.numpy() for w in expected.non_trainable_weights], 1e-5
    )
    kt.assert_equal_on_all_ranks(statistics)


def test_statistics_are_float32_under_mixed_precision() -> None:
    layer = hvd.SyncBatchNormalization(dtype="mixed_float16", momentum=0.0)
    # Squares and sums of 64 rows are out of the range of float16.
    x = np.float16([[2000.0, 1.0], [3000.0, 2.0]] * 32) + np.float16(hvd.rank())
    outputs = layer(x, training=True)
    assert outputs.dtype == tf.float16
    rows = np.concatenate(hvd.allgather_object(x)).astype(np.float64)
    kt.assert_close(
        [layer.moving_mean.numpy(), layer.moving_variance.numpy()],
        [rows.mean(axis=0), rows.var(axis=0)],
        1e-5,
    )


def test_ranks_outside_a_process_set_have_their_own_statistics(
    sets: dict[str, hvd.ProcessSet],
) -> None:
    even = sets["even"]
    ranks = list(range(0, hvd.size(), 2))
    layer = hvd.SyncBatchNormalization(process_set=even, momentum=0.0)
    layer(np.full((2, 1), hvd.rank(), np.float32), training=True)
    own = hvd.rank() if hvd.rank() % 2 else np.mean(ranks)
    assert float(layer.moving_mean.numpy()[0]) == own
    copy = hvd.SyncBatchNormalization.from_config(layer.get_config())
    assert copy.process_set.process_set_id == even.process_set_id


def test_inference_needs_no_other_rank() -> None:
    frozen = hvd.SyncBatchNormalization(trainable=False, epsilon=3.0)
    layer = hvd.SyncBatchNormalization(epsilon=3.0)
    x = np.ones((2, 3), np.float32)
    if hvd.rank() == 0:
        # The moving mean is 0 and the moving variance 1.
        for outputs in (frozen(x, training=True), layer(x, training=False)):
            np.testing.assert_array_equal(outputs, x / 2)
        assert frozen.moving_mean.numpy().tolist() == [0.0] * 3


def test_calls_of_one_layer_under_two_tapes_do_not_mix() -> None:
    if hvd.rank() == 0:  # one rank's own layer must not change names
        hvd.SyncBatchNormalization()(np.ones((2, 3)))
    layer = hvd.SyncBatchNormalization(dtype="float64", epsilon=1e-12)
    layer.build((None, 3))
    apply = tf.function(lambda x: layer(x, training=True))

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as one, tf.GradientTape() as other:
            one.watch(x)
            other.watch(x)
            outputs = [layer(x, training=True), apply(x), apply(y)]
            first = tf.reduce_sum(outputs[0] ** 3 + outputs[1] ** 2)
            second = tf.reduce_sum(outputs[0] ** 3 + outputs[2])
        return [one.gradient(first, x), other.gradient(second, x)]

    x = np.random.default_rng(hvd.rank()).normal(size=(4, 3))
    for _ in range(3):
        first, second = step(x, x + 1.0)
    # Sums of normalised values, or of their squares, do not depend on x.
    np.testing.assert_allclose(first, second, rtol=1e-6)


@needs_peers
def test_raises_where_one_rank_has_a_mask() -> None:
    layer = hvd.SyncBatchNormalization()
    x = np.ones((2, 4, 3), np.float32)
    mask = np.ones((2, 4), bool) if hvd.rank() == 0 else None
    with pytest.raises(hvd.MismatchError):
        layer(x, training=True, mask=mask)


def test_callbacks_and_files_keep_the_statistics(
    tmp_path: pathlib.Path,
) -> None:
    model = kt.build(model_with(hvd.SyncBatchNormalization))
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
    before: list[np.ndarray] = []

    class Remember(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            before.extend(model.get_weights())

    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    data = kt.shares(*kt.regression_data())
    model.fit(data, verbose=0, callbacks=[Remember(), callback])
    path = tmp_path / "model.keras"
    model.save(path)
    loaded = hvd.load_model(path)
    layer = loaded.layers[2]
    assert type(layer) is hvd.SyncBatchNormalization
    assert layer.process_set is hvd.global_process_set
    for found in (model, loaded):
        for ours, earlier in zip(found.get_weights(), before, strict=True):
            assert ours.tobytes() == earlier.tobytes()


def test_process_set_argument_must_be_a_process_set() -> None:
    with pytest.raises(TypeError, match="process_set"):
        hvd.SyncBatchNormalization(process_set=[0])
