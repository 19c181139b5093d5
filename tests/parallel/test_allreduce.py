"""`hvd.allreduce`, as `ops/allreduce.py`."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

FLOATING = ["float16", "bfloat16", "float32", "float64"]
INTEGER = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
BASE = np.array([[0, 1, 2]])  # products of 4 ranks fit an int8
REDUCTIONS = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]


def array(values: Any, dtype: str) -> np.ndarray:
    return np.asarray(values, tf.as_dtype(dtype).as_numpy_dtype)


def expected(op: hvd.ReduceOp, size: int, dtype: str) -> np.ndarray:
    """Returns the reduction of all ranks' `BASE + rank`."""
    total = BASE * size + size * (size - 1) // 2
    values = {
        hvd.Sum: total,
        hvd.Average: total / size,
        hvd.Min: BASE,
        hvd.Max: BASE + size - 1,
        hvd.Product: np.prod([BASE + r for r in range(size)], axis=0),
    }[op]
    if dtype in INTEGER:
        values = np.trunc(values)
    return array(values, dtype)


@pytest.mark.parametrize("dtype", FLOATING + INTEGER)
def test_allreduce_reduces(run, rank, size, dtype: str) -> None:
    results = run(
        lambda x: [hvd.allreduce(x, op) for op in REDUCTIONS],
        array(BASE + rank, dtype),
    )
    for op, result in zip(REDUCTIONS, results, strict=True):
        assert result.dtype == array(0, dtype).dtype
        np.testing.assert_array_equal(result, expected(op, size, dtype))


def test_integer_average_is_rounded_towards_zero(run, rank, size) -> None:
    result = run(
        lambda x: hvd.allreduce(x, hvd.Average),
        np.array([-rank, rank], np.int32),
    )
    total = size * (size - 1) // 2
    np.testing.assert_array_equal(result, [-(total // size), total // size])


def test_allreduce_of_bool_is_all_or_any(run, rank) -> None:
    def both(x: tf.Tensor) -> list[tf.Tensor]:
        return [hvd.allreduce(x, hvd.Min), hvd.allreduce(x, hvd.Max)]

    is_all, is_any = run(both, np.array([True, False, rank == 0]))
    single = hvd.size() == 1
    np.testing.assert_array_equal(is_all, [True, False, single])
    np.testing.assert_array_equal(is_any, [True, False, True])


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average, hvd.Product])
def test_allreduce_of_bool_raises_for_other_reductions(op) -> None:
    with pytest.raises(hvd.exceptions.InvalidArgumentError, match=op.name):
        hvd.allreduce(True, op)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8_is_moved_by_the_cpu_but_not_reduced(name, rank, size) -> None:
    dtype = getattr(tf.dtypes.experimental, name)
    mine = tf.cast(tf.fill([2], 1.0 + rank), dtype)
    rows = tf.cast(hvd.allgather(mine, name="f8g"), tf.float32)
    np.testing.assert_array_equal(rows, np.repeat(np.arange(size) + 1.0, 2))
    root = tf.cast(hvd.broadcast(mine, 0, name="f8b"), tf.float32)
    np.testing.assert_array_equal(root, [1.0, 1.0])
    with pytest.raises(
        hvd.exceptions.InvalidArgumentError,
        match=f"the CPU cannot reduce {name}, only NCCL on GPUs can: cast to",
    ):
        hvd.allreduce(mine, hvd.Sum, name="f8r")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_allreduce_scales(run, rank, size, dtype: str) -> None:
    result = run(
        lambda x: hvd.allreduce(
            x, hvd.Sum, prescale_factor=0.5, postscale_factor=4
        ),
        array(BASE + rank, dtype),
    )
    np.testing.assert_array_equal(result, 2 * expected(hvd.Sum, size, dtype))


def test_scale_factors_keep_the_bits_of_a_double(run, size) -> None:
    result = run(
        lambda x: hvd.allreduce(x, hvd.Average, prescale_factor=0.1),
        np.float64(3),
    )
    assert result == pytest.approx(3 * 0.1, rel=1e-15)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
def test_allreduce_of_any_shape(run, size, shape: tuple[int, ...]) -> None:
    result = run(lambda x: hvd.allreduce(x, hvd.Sum), np.ones(shape, "f4"))
    np.testing.assert_array_equal(result, np.full(shape, size, "f4"))


@pytest.mark.parametrize("num_elements", [1, 7, 1000, 1_000_003])
def test_allreduce_of_any_length(rank, size, num_elements: int) -> None:
    values = tf.range(num_elements) % 100
    result = hvd.allreduce(values + rank, hvd.Sum)
    np.testing.assert_array_equal(
        result, values * size + size * (size - 1) // 2
    )


@pytest.mark.parametrize(
    "value",
    [
        3,
        2.5,
        np.float64(1.5),
        np.array([1, 2], np.int8),
        [1.0, 2.0],
        tf.Variable([1, 2], dtype=tf.uint16),
        keras.Variable([1.0, 2.0], dtype="float16"),
        keras.Variable([1.0, 2.0], dtype="bfloat16"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_allreduce_converts_its_input_to_a_tensor(run, value: Any) -> None:
    expected = tf.convert_to_tensor(value)
    if isinstance(value, tf.Variable | keras.Variable):
        result = hvd.allreduce(value)
        compiled = tf.function(lambda: hvd.allreduce(value))()
        np.testing.assert_array_equal(compiled, result)
    else:
        result = run(lambda: hvd.allreduce(value))
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


def test_input_with_other_uses_keeps_its_value(run, rank, size) -> None:
    def reduce(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        doubled = x * 2
        return doubled + 0, hvd.allreduce(doubled, hvd.Sum)

    kept, total = run(reduce, np.full([1000], rank + 1, "f4"))
    np.testing.assert_array_equal(kept, np.full([1000], 2 * (rank + 1)))
    np.testing.assert_array_equal(total, np.full([1000], size * (size + 1)))


def test_variable_keeps_its_value(rank, size) -> None:
    variable = tf.Variable(tf.fill([1000], float(rank)))

    @tf.function
    def reduce() -> tf.Tensor:
        return hvd.allreduce(variable, hvd.Sum)

    for _ in range(3):
        np.testing.assert_array_equal(reduce(), [size * (size - 1) / 2] * 1000)
    np.testing.assert_array_equal(variable, [rank] * 1000)


def test_shape_is_inferred() -> None:
    @tf.function(
        input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec(None)]
    )
    def reduce(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        assert hvd.allreduce(x).shape.as_list() == [None, 3]
        assert hvd.allreduce(y).shape.rank is None
        return x

    reduce.get_concrete_function()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"op": 6}, "op=6"),
        ({"op": hvd.Adasum, "tensor": 1}, "int32"),
        ({"op": True}, "op=True"),
        ({"op": "Sum"}, "op='Sum'"),
        ({"name": ""}, "name=''"),
        ({"name": 3}, "name=3"),
        ({"prescale_factor": math.nan}, "prescale_factor=nan"),
        ({"postscale_factor": "x"}, "postscale_factor='x'"),
        ({"tensor": "text"}, "string"),
        ({"tensor": [1, [2, 3]]}, "list"),
        ({"tensor": tf.ragged.constant([[1], [2, 3]])}, "RaggedTensor"),
        ({"tensor": tf.complex(1.0, 2.0)}, "complex64"),
        ({"tensor": None}, "NoneType"),
        ({"process_set": [0]}, "ProcessSet"),
        ({"process_set": hvd.ProcessSet([0])}, "must be registered"),
    ],
    ids=str,
)
def test_raises_for_bad_arguments(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text) as raised:
        hvd.allreduce(**{"tensor": 1.0, **arguments})
    assert isinstance(raised.value, hvd.exceptions.InvalidArgumentError)
    assert isinstance(raised.value, tf.errors.InvalidArgumentError)


@pytest.mark.parametrize(
    ("keyword", "text"),
    [
        ("average", "op=hvd.Average"),
        ("device_dense", "tf.device"),
        ("device_sparse", "tf.device"),
        ("unknown", "unknown"),
    ],
)
def test_refuses_deprecated_keywords(keyword: str, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        hvd.allreduce(1.0, **{keyword: True})
    with pytest.raises(TypeError, match=text):
        hvd.grouped_allreduce([1.0], **{keyword: True})
    with pytest.raises(TypeError, match=text):
        hvd.reducescatter([1.0], **{keyword: True})


def test_average_is_the_default(rank, size) -> None:
    assert hvd.allreduce(float(rank)) == (size - 1) / 2
    assert hvd.allreduce(float(rank), None) == (size - 1) / 2


def test_names_may_ignore_name_scopes(run, rank, size) -> None:
    def reduce(x: tf.Tensor) -> tf.Tensor:
        x = tf.identity(x, name="unscoped")
        with tf.name_scope(f"scope_of_rank_{rank}"):
            return hvd.allreduce(x, hvd.Sum, ignore_name_scope=True)

    assert run(reduce, np.float32(rank)) == size * (size - 1) / 2


def test_names_that_ignore_name_scopes_are_unique_in_a_graph(
    rank, size
) -> None:
    @tf.function
    def reduce(x: tf.Tensor, values: tf.Tensor) -> list[tf.Tensor]:
        with tf.name_scope(f"of_rank_{rank}"):
            slices = tf.IndexedSlices(values, [0], [3])
            sums = [
                hvd.allreduce(y, hvd.Sum, ignore_name_scope=True)
                for y in (x, x, slices, slices)
            ] + hvd.grouped_allreduce(
                [x, slices], hvd.Sum, ignore_name_scope=True
            )
        return [tf.convert_to_tensor(total)[0] for total in sums]

    expected = size * (size - 1) / 2
    x = tf.constant([float(rank)])
    assert [float(total) for total in reduce(x, x)] == [expected] * 6


def test_nameless_calls_count_from_the_start_in_a_new_job(rank, size) -> None:
    hvd.shutdown()
    if rank == 0:
        with pytest.raises(hvd.NotInitializedError):
            hvd.allreduce(1.0)
    hvd.init()
    assert hvd.allreduce(1.0, hvd.Sum) == size
