"""`hvd.grouped_allreduce`, as `ops/grouped_allreduce.py`."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

MIXED = ["float32", "int64", "bfloat16", "uint8", "float64", "float16"]


def mixed_arrays(rank: int) -> list[np.ndarray]:
    """Returns tensors; number `i` has `i` elements, each `rank + i`."""
    return [
        np.full([i], rank + i, tf.as_dtype(dtype).as_numpy_dtype)
        for i, dtype in enumerate(MIXED)
    ]


@pytest.mark.parametrize("op", [hvd.Sum, hvd.Average, hvd.Min, hvd.Max])
def test_members_may_differ_in_dtype_and_shape(run, rank, size, op) -> None:
    arrays = mixed_arrays(rank)
    results = run(lambda *x: hvd.grouped_allreduce(list(x), op), *arrays)
    for i, (array, result) in enumerate(zip(arrays, results, strict=True)):
        value = {
            hvd.Sum: size * i + size * (size - 1) // 2,
            hvd.Average: i + (size - 1) / 2,
            hvd.Min: i,
            hvd.Max: i + size - 1,
        }[op]
        if array.dtype.kind in "iu":
            value = int(value)
        assert result.dtype == array.dtype
        np.testing.assert_array_equal(result, np.full([i], value, array.dtype))


def test_grouped_allreduce_scales(run, rank, size) -> None:
    results = run(
        lambda *x: hvd.grouped_allreduce(
            list(x), hvd.Sum, prescale_factor=0.5, postscale_factor=8
        ),
        np.float32(rank),
        np.float64(1),
    )
    assert results == [2 * size * (size - 1), 4 * size]


def test_groups_may_have_one_member_or_many(run, rank, size) -> None:
    def reduce(x: tf.Tensor) -> list[tf.Tensor]:
        many = hvd.grouped_allreduce([x + i for i in range(200)], hvd.Sum)
        return [*hvd.grouped_allreduce([x], hvd.Sum), *many]

    one, *many = run(reduce, np.int32(rank))
    total = size * (size - 1) // 2
    assert one == total
    assert many == [total + size * i for i in range(200)]


def test_one_tensor_may_come_twice(run, rank, size) -> None:
    first, second = run(
        lambda x: hvd.grouped_allreduce([x, x], hvd.Sum),
        np.full([100], rank, "f4"),
    )
    np.testing.assert_array_equal(first, [size * (size - 1) / 2] * 100)
    np.testing.assert_array_equal(second, first)


def test_inputs_with_other_uses_keep_their_values(run, rank) -> None:
    def reduce(x: tf.Tensor) -> tuple[tf.Tensor, ...]:
        a, b = x + 1, x + 2
        return a + 0, *hvd.grouped_allreduce([a, b, b + 1], hvd.Max), b + 0

    kept_a, max_a, max_b, max_c, kept_b = run(reduce, np.full([9], rank, "f4"))
    top = hvd.size() - 1
    assert [kept_a[0], kept_b[0]] == [rank + 1, rank + 2]
    assert [max_a[8], max_b[8], max_c[8]] == [top + 1, top + 2, top + 3]


def test_shapes_are_inferred() -> None:
    specs = [tf.TensorSpec([None, 3]), tf.TensorSpec([2], tf.int32)]

    @tf.function(input_signature=specs)
    def reduce(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        a, b = hvd.grouped_allreduce([x, y])
        assert a.shape.as_list() == [None, 3]
        assert b.shape.as_list() == [2]
        return a

    reduce.get_concrete_function()


def test_a_rank_may_leave_outputs_out_of_its_loss(run, rank, size) -> None:
    def gradient(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, y])
            a, b = hvd.grouped_allreduce([x, y], hvd.Sum, name="left out")
            loss = a if rank == 0 else b
        return tape.gradient(loss, [x, y])

    assert run(gradient, np.float32(1), np.float32(1)) == [1, size - 1]


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ([], "empty list"),
        (tf.constant([1.0]), "EagerTensor"),
        ([1.0, None], "None at index 1 of 2"),
        ([1.0, "x"], r"tensors\[1\]"),
        ([1.0, True], "bool"),
    ],
    ids=str,
)
def test_raises_for_bad_arguments(tensors, text: str) -> None:
    with pytest.raises(ValueError, match=text) as raised:
        hvd.grouped_allreduce(tensors, name="bad")
    assert isinstance(raised.value, hvd.exceptions.InvalidArgumentError)
