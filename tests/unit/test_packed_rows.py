"""Rows as int8 with scales: errors within the bound, and what is no number."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from hvd_keras.ops._packed_rows import pack, unpack


def back(values: tf.Tensor, jit: bool = False) -> np.ndarray:
    @tf.function(jit_compile=jit)
    def both(values: tf.Tensor) -> tf.Tensor:
        packed, scales = pack(values)
        assert packed.dtype == tf.int8
        assert packed.shape[1] == values.shape[1:].num_elements()
        return unpack(packed, scales, values)

    result = both(values)
    assert result.dtype == values.dtype
    assert result.shape == values.shape
    return np.asarray(tf.cast(result, tf.float64))


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("shape", [(7, 128), (5, 200), (3, 8), (2, 16, 20)])
def test_the_error_is_bounded_by_the_block(shape, dtype, jit) -> None:
    draws = np.random.default_rng(0).standard_normal(shape)
    values = tf.cast(
        draws
        * 10.0
        ** np.arange(-3, -3 + shape[0]).reshape(-1, *[1] * (len(shape) - 1)),
        dtype,
    )
    exact = np.asarray(tf.cast(values, tf.float64)).reshape(shape[0], -1)
    error = np.abs(back(values, jit).reshape(shape[0], -1) - exact)
    rounding = 2.0**-8 if dtype == "bfloat16" else 1e-6
    for begin in range(0, exact.shape[1], 128):
        block = slice(begin, begin + 128)
        most = np.abs(exact[:, block]).max(axis=1, keepdims=True)
        assert (error[:, block] <= most * (1 / 254 + rounding)).all()
    assert error.max() > 0


@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_a_block_with_an_odd_number_is_nan_and_others_are_not(odd) -> None:
    values = np.ones((2, 256), np.float32)
    values[1, 130] = odd
    result = back(tf.constant(values))
    assert np.isnan(result[1, 128:]).all()
    assert (result[0] == 1).all()
    assert (result[1, :128] == 1).all()


@pytest.mark.parametrize("size", [0.0, 1e-38, -1e-40])
def test_what_is_tiny_counts_as_nothing(size) -> None:
    values = tf.fill([3, 64], tf.constant(size, tf.float32))
    assert (back(values) == 0).all()


def test_no_rows() -> None:
    assert back(tf.zeros([0, 32])).shape == (0, 32)
