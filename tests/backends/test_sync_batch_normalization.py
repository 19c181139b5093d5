"""Batches are normalised as if one process had all rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import small_training as small

import hvd_keras as hvd

BatchNormalization = keras.layers.BatchNormalization


def synchronized(**options: Any) -> keras.layers.Layer:
    return BatchNormalization(synchronized=True, **options)


def model_with(layer: Callable[..., Any]) -> keras.Model:
    """Returns a model that uses a layer in two branches, twice in one."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((small.NUM_FEATURES,))
    dense = lambda: keras.layers.Dense(5, use_bias=False)  # noqa: E731
    left = layer(momentum=0.8)(dense()(inputs))
    shared = layer(momentum=0.8)
    right = dense()(inputs)
    right = shared(keras.layers.Activation("tanh")(shared(right)))
    hidden = keras.layers.Concatenate()([left, right])
    return keras.Model(inputs, keras.layers.Dense(1)(hidden))


BATCH = small.BATCH


def uneven(array: np.ndarray) -> list[np.ndarray]:
    """Returns this rank's rows of each batch: later ranks have more."""
    size = hvd.size()
    ends = [BATCH * i * (i + 1) // (size * (size + 1)) for i in range(size + 1)]
    first, last = ends[hvd.rank()], ends[hvd.rank() + 1]
    batches = array.reshape(-1, BATCH, *array.shape[1:])
    return list(batches[:, first:last])


class Batches(keras.utils.PyDataset):
    def __init__(self, x: Any, y: Any) -> None:
        super().__init__()
        self._batches = list(zip(x, y, strict=True))

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> Any:
        return self._batches[index]


def weights_after_fit(
    layer: Callable[..., Any], data: Any, optimizer: Any, **options: Any
) -> list[np.ndarray]:
    model = model_with(layer)
    model.compile(optimizer, "mse", **options)
    model.fit(data, verbose=0, shuffle=False)
    return model.get_weights()


def sgd() -> Any:
    return keras.optimizers.SGD(0.05, momentum=0.9)


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        (hvd.SyncBatchNormalization, {}),
        (synchronized, {}),
        pytest.param(
            hvd.SyncBatchNormalization,
            {"run_eagerly": True},
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            hvd.SyncBatchNormalization,
            {"jit_compile": True},
            marks=pytest.mark.thorough,  # torch compiles for a minute
        ),
    ],
)
def test_fit_on_uneven_shares_equals_one_process(
    layer: Callable[..., Any], options: dict[str, Any]
) -> None:
    x, y = small.data()
    x = x + np.arange(x.shape[1], dtype=np.float32)
    whole = Batches(x.reshape(-1, BATCH, x.shape[1]), y.reshape(-1, BATCH, 1))
    expected = weights_after_fit(BatchNormalization, whole, sgd())
    weights = weights_after_fit(
        layer,
        Batches(uneven(x), uneven(y)),
        hvd.DistributedOptimizer(sgd()),
        **options,
    )
    # The weights include the moving statistics.
    for mine, one in zip(small.on_all_ranks(weights), expected, strict=True):
        scale = max(np.abs(one).max(), 1e-3)
        np.testing.assert_allclose(mine, one, rtol=0, atol=1e-5 * scale)


def test_masked_positions_do_not_count() -> None:
    generator = np.random.default_rng(5)
    x = generator.normal(size=(13, 4, 3)) * [1.0, 0.01, 9.0] + [0, 30, 5]
    mask = generator.integers(0, 2, size=(13, 4)).astype(bool)
    x = x.astype(np.float32)
    rows = slice(0, 0)  # rank 0 has no row
    if hvd.rank() > 0:
        rows = slice(hvd.rank() - 1, None, hvd.size() - 1)
    layer = hvd.SyncBatchNormalization(momentum=0.0, epsilon=1e-9)
    layer.build((None, 4, 3))
    outputs = layer(x[rows], training=True, mask=mask[rows])
    valid = x[mask].astype(np.float64)
    mean, variance = valid.mean(axis=0), valid.var(axis=0)
    found = [layer.moving_mean, layer.moving_variance]
    found = small.on_all_ranks(map(keras.ops.convert_to_numpy, found))
    np.testing.assert_allclose(found, [mean, variance], rtol=1e-5)
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(outputs)[mask[rows]],
        ((x - mean) / np.sqrt(variance))[rows][mask[rows]],
        atol=1e-3,
    )


def test_statistics_are_float32_under_mixed_precision() -> None:
    layer = hvd.SyncBatchNormalization(dtype="mixed_float16", momentum=0.0)
    # Squares and sums of 64 rows are out of the range of float16.
    x = np.float16([[2000.0, 1.0], [3000.0, 2.0]] * 32) + np.float16(hvd.rank())
    outputs = layer(x, training=True)
    assert keras.backend.standardize_dtype(outputs.dtype) == "float16"
    rows = np.concatenate(hvd.allgather_object(x)).astype(np.float64)
    found = [layer.moving_mean, layer.moving_variance]
    np.testing.assert_allclose(
        small.on_all_ranks(map(keras.ops.convert_to_numpy, found)),
        [rows.mean(axis=0), rows.var(axis=0)],
        rtol=1e-5,
    )


def test_inference_needs_no_other_rank() -> None:
    layer = hvd.SyncBatchNormalization(epsilon=3.0)
    if hvd.rank() == 0:
        x = np.ones((2, 3), np.float32)  # the moving variance is 1
        outputs = keras.ops.convert_to_numpy(layer(x, training=False))
        np.testing.assert_array_equal(outputs, x / 2)
