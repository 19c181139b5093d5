"""`hvd.allgather`, as `ops/allgather.py`."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

DTYPES = ["bool", "float16", "bfloat16", "float32", "float64"] + [
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
]


def rows(rank: int, num_rows: int, dtype: str = "float32") -> np.ndarray:
    """Returns rows of [rank, rank + 1]."""
    values = np.array([[rank, rank + 1]] * num_rows).reshape(num_rows, 2)
    return values.astype(tf.as_dtype(dtype).as_numpy_dtype)


def all_rows(size: int, num_rows, dtype: str = "float32") -> np.ndarray:
    parts = [rows(r, num_rows(r), dtype) for r in range(size)]
    return np.concatenate(parts)


@pytest.mark.parametrize("dtype", DTYPES)
def test_allgather_concatenates(run, rank, size, dtype: str) -> None:
    result = run(hvd.allgather, rows(rank, 3, dtype))
    assert result.dtype == rows(0, 1, dtype).dtype
    np.testing.assert_array_equal(result, all_rows(size, lambda _: 3, dtype))


@pytest.mark.parametrize(
    "num_rows",
    [lambda r: r + 1, lambda r: 5 - r, lambda r: 2 * (r % 2), lambda _: 0],
    ids=["rising", "falling", "some empty", "all empty"],
)
def test_first_dimension_may_differ_by_rank(run, rank, size, num_rows) -> None:
    result = run(hvd.allgather, rows(rank, num_rows(rank)))
    np.testing.assert_array_equal(result, all_rows(size, num_rows))


def test_large_rows_are_gathered(rank, size) -> None:
    result = hvd.allgather(tf.fill([rank + 1, 300_000], rank)).numpy()
    expected = np.repeat(np.arange(size), np.arange(size) + 1)
    np.testing.assert_array_equal(result[:, 0], expected)
    np.testing.assert_array_equal(result[:, -1], expected)


def test_rows_may_have_no_elements(run, size) -> None:
    result = run(hvd.allgather, np.zeros([2, 0, 3], "f4"))
    assert result.shape == (2 * size, 0, 3)


def test_static_shape_has_an_unknown_first_dimension() -> None:
    specs = [tf.TensorSpec([2, None, 3]), tf.TensorSpec(None)]

    @tf.function(input_signature=specs)
    def gather(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        assert hvd.allgather(x).shape.as_list() == [None, None, 3]
        assert hvd.allgather(x[0, 0]).shape.as_list() == [None]
        assert hvd.allgather(y).shape.rank is None
        return x

    gather.get_concrete_function()


def test_many_allgathers_run_at_once(run, rank, size) -> None:
    def gather(x: tf.Tensor) -> list[tf.Tensor]:
        return [hvd.allgather(x + i, name=f"many {i}") for i in range(30)]

    results = run(gather, rows(rank, rank))
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result, all_rows(size, lambda r: r) + i)


def test_gradient_is_the_sum_of_the_ranks_upstreams(run, rank, size) -> None:
    def gradient(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = hvd.allgather(x, name="forward")
            weight = tf.range(tf.cast(tf.shape(y)[0], tf.float32))
            loss = (rank + 1) * tf.reduce_sum(y * weight[:, None])
        gradient = tape.gradient(loss, x)
        assert gradient.shape == x.shape
        return gradient

    result = run(gradient, rows(rank, rank + 1))
    first = rank * (rank + 1) // 2
    weights = np.arange(first, first + rank + 1) * size * (size + 1) / 2
    np.testing.assert_array_equal(result, np.stack([weights] * 2, axis=1))


def test_gradient_needs_no_name(rank, size) -> None:
    x = tf.constant([1.0, 2.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(hvd.allgather(x) ** 2)
    np.testing.assert_array_equal(tape.gradient(y, x), [2 * size, 4 * size])


def test_raises_for_a_scalar() -> None:
    with pytest.raises(ValueError, match="a scalar"):
        hvd.allgather(1.0)


def test_raises_for_a_scalar_of_unknown_rank() -> None:
    @tf.function(input_signature=[tf.TensorSpec(None)])
    def gather(x: tf.Tensor) -> tf.Tensor:
        return hvd.allgather(x)

    with pytest.raises(hvd.exceptions.InvalidArgumentError, match="scalar"):
        gather(tf.constant(1.0))
