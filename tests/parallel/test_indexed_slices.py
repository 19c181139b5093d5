"""`tf.IndexedSlices` in `hvd.allreduce` and `hvd.grouped_allreduce`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

pytestmark = pytest.mark.thorough(2, 3)

NUM_ROWS = 10
LINEAR = [hvd.Sum, hvd.Average]


def slices_of(rank: int, pattern: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns a rank's indices, and values of two columns."""
    indices = {
        "disjoint": [2 * rank, 2 * rank + 1],
        "equal": [1, 8, 3],
        "duplicates": [rank, 9, rank, 9, 9],
        "empty on some": [] if rank % 2 else [4, 4, rank],
        "empty on all": [],
        "one row": [5],
    }[pattern]
    rows = np.arange(len(indices))[:, None] * np.array([1, 2]) + rank + 1
    return np.array(indices, np.int64), rows.reshape(-1, 2)


PATTERNS = [
    "disjoint",
    "equal",
    "duplicates",
    "empty on some",
    "empty on all",
    "one row",
]


def dense(ranks: list[int], pattern: str, op: hvd.ReduceOp) -> np.ndarray:
    total = np.zeros((NUM_ROWS, 2))
    for rank in ranks:
        indices, rows = slices_of(rank, pattern)
        np.add.at(total, indices, rows)
    return total / len(ranks) if op == hvd.Average else total


def check(result: Any, ranks: list[int], pattern: str, op: Any) -> None:
    """Checks `result`: indices, values and dense form of a reduction."""
    indices, values, whole = result
    expected = dense(ranks, pattern, op)
    if whole.dtype.kind in "iu":
        expected = np.trunc(expected)
    used = {int(i) for rank in ranks for i in slices_of(rank, pattern)[0]}
    assert sorted(indices.tolist()) == sorted(used)  # each index once
    np.testing.assert_allclose(
        whole.astype(np.float64), expected, rtol=1e-2 if _half(whole) else 1e-6
    )
    assert values.shape == (len(used), 2)


def _half(array: np.ndarray) -> bool:
    return array.dtype.itemsize == 2 and array.dtype.kind not in "iu"


def parts(slices: tf.IndexedSlices) -> list[tf.Tensor]:
    return [slices.indices, slices.values, tf.convert_to_tensor(slices)]


@pytest.mark.thorough(1, 4)
@pytest.mark.parametrize("op", LINEAR)
@pytest.mark.parametrize("index_dtype", [np.int32, np.int64])
def test_slices_are_reduced(run, rank, process_set, op, index_dtype) -> None:
    def reduce(*arrays: tf.Tensor) -> list[list[tf.Tensor]]:
        results = []
        for values, indices in zip(arrays[::2], arrays[1::2], strict=True):
            shape = tf.constant([NUM_ROWS, 2], indices.dtype)
            slices = tf.IndexedSlices(values, indices, shape)
            result = hvd.allreduce(slices, op, process_set=process_set)
            assert isinstance(result, tf.IndexedSlices)
            results.append(parts(result))
        return results

    arrays = []
    for pattern in PATTERNS:
        indices, rows = slices_of(rank, pattern)
        arrays += [rows.astype("f4"), indices.astype(index_dtype)]
    for pattern, result in zip(PATTERNS, run(reduce, *arrays), strict=True):
        check(result, process_set.ranks, pattern, op)


@pytest.mark.parametrize(
    "dtype", ["float16", "bfloat16", "float64", "int32", "uint8", "int64"]
)
@pytest.mark.parametrize("op", LINEAR)
def test_slices_of_all_dtypes_are_reduced(rank, size, op, dtype: str) -> None:
    for pattern in PATTERNS:
        indices, rows = slices_of(rank, pattern)
        slices = tf.IndexedSlices(
            tf.cast(rows, dtype), indices, tf.constant([NUM_ROWS, 2])
        )
        result = [x.numpy() for x in parts(hvd.allreduce(slices, op))]
        assert result[1].dtype == tf.as_dtype(dtype).as_numpy_dtype
        check(result, list(range(size)), pattern, op)


def test_result_is_equal_on_all_ranks(rank, size) -> None:
    for pattern in PATTERNS:
        indices, rows = slices_of(rank, pattern)
        slices = tf.IndexedSlices(rows / 3, indices)
        result = hvd.allreduce(slices)
        assert result.dense_shape is None
        for tensor in (result.indices, result.values):
            first = hvd.broadcast(tensor, 0)
            np.testing.assert_array_equal(tensor, first)


def sent_bytes(pattern: str) -> tuple[int, int]:
    """Returns the bytes that this rank has sent, and those of its values."""
    from hvd_keras import _native

    indices, _ = slices_of(hvd.rank(), pattern)
    num_unique = len(set(indices.tolist()))
    wide = tf.ones([len(indices), 1000])
    before = _native.core().stats()["num_bytes"]
    hvd.allreduce(tf.IndexedSlices(wide, indices), hvd.Sum)
    moved = _native.core().stats()["num_bytes"] - before
    return moved - 8 * num_unique, 4000 * num_unique


@pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
def test_allreduce_replaces_allgather_where_it_is_cheaper(rank, size) -> None:
    """Slices with equal indices are allreduced, one row for each index."""
    used = {"equal": 3, "duplicates": size + 1}
    moved, own = sent_bytes("equal")
    assert moved == own == 4000 * used["equal"]
    moved, own = sent_bytes("disjoint")
    assert moved == own == 4000 * 2


def test_prescale_and_postscale(run, rank, size) -> None:
    def reduce(values: tf.Tensor) -> tf.Tensor:
        slices = tf.IndexedSlices(
            values, tf.constant([rank, NUM_ROWS - 1]), tf.constant([10, 2])
        )
        result = hvd.allreduce(
            slices, hvd.Sum, prescale_factor=0.5, postscale_factor=8
        )
        return tf.convert_to_tensor(result)

    result = run(reduce, np.full([2, 2], rank + 1, "f4"))
    assert result[rank].tolist() == [4 * (rank + 1)] * 2
    assert result[9].tolist() == [2 * size * (size + 1)] * 2


def test_compression_is_applied(rank, size) -> None:
    value = 1 + 2.0**-12  # has more digits than a float16
    for index in (rank, 0):
        slices = tf.IndexedSlices(tf.fill([1, 2], value), [index])
        result = hvd.allreduce(
            slices, hvd.Sum, compression=hvd.Compression.fp16
        )
        assert result.values.dtype == tf.float32
        expected = 1 if index == rank and size > 1 and rank else None
        total = size if index == 0 and rank else expected
        if total is not None:
            assert tf.reduce_max(result.values) == total


def test_groups_may_mix_dense_and_sparse_members(
    run, rank, process_set
) -> None:
    """Dense and sparse members have different shapes."""
    ranks = process_set.ranks

    def reduce(x: tf.Tensor) -> list[Any]:
        first = tf.IndexedSlices(
            tf.fill([1, 2], x), tf.constant([rank]), tf.constant([4, 2])
        )
        second = tf.IndexedSlices(
            tf.fill([2, 3], x), tf.constant([1, 1]), tf.constant([7, 3])
        )
        results = hvd.grouped_allreduce(
            [x, first, x + 1, second], hvd.Sum, process_set=process_set
        )
        assert [isinstance(r, tf.IndexedSlices) for r in results] == [
            False,
            True,
            False,
            True,
        ]
        return [tf.convert_to_tensor(result) for result in results]

    a, first, b, second = run(reduce, np.float32(rank))
    assert a == sum(ranks)
    assert b == sum(ranks) + len(ranks)
    assert first.shape == (4, 2)
    assert first[rank].tolist() == [rank, rank]
    assert second.shape == (7, 3)
    assert second[1].tolist() == [2 * sum(ranks)] * 3
    assert second[2].tolist() == [0] * 3


def test_several_in_a_function_with_a_loop(rank, size) -> None:
    @tf.function
    def step(n: tf.Tensor) -> tf.Tensor:
        total = tf.zeros([4, 1])
        for i in tf.range(n):
            slices = tf.IndexedSlices(
                tf.fill([1, 1], tf.cast(i, tf.float32)),
                tf.fill([1], i % 4),
                tf.constant([4, 1]),
            )
            total += tf.convert_to_tensor(hvd.allreduce(slices, hvd.Sum))
        return total

    assert step(tf.constant(8))[:, 0].numpy().tolist() == [
        size * (i + i + 4) for i in range(4)
    ]


def test_ranks_may_trace_in_different_orders(rank, size) -> None:
    order = range(6) if rank % 2 else reversed(range(6))
    plan = list(order)

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        results = {}
        for i in plan:
            slices = tf.IndexedSlices(x[None] + i, [i])
            results[i] = hvd.allreduce(slices, hvd.Sum, name=f"embedding {i}")
        return [results[i].values for i in range(6)]

    for i, values in enumerate(step(tf.constant([float(rank)]))):
        assert values.numpy().tolist() == [[size * i + size * (size - 1) / 2]]


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product, hvd.Adasum])
def test_raises_for_other_reductions(op) -> None:
    slices = tf.IndexedSlices(tf.ones([1, 2]), [0])
    with pytest.raises(NotImplementedError, match=op.name):
        hvd.allreduce(slices, op)
    with pytest.raises(NotImplementedError, match=op.name):
        hvd.grouped_allreduce([tf.ones([1]), slices], op)


def test_raises_for_factors_of_integers() -> None:
    slices = tf.IndexedSlices(tf.ones([1, 2], tf.int32), [0])
    with pytest.raises(NotImplementedError, match=r"prescale_factor=0\.5"):
        hvd.allreduce(slices, hvd.Sum, prescale_factor=0.5)


@pytest.mark.parametrize("jit_compile", [False, True], ids=["graph", "xla"])
@pytest.mark.parametrize("dtype", ["uint8", "int32"])
def test_averages_of_integers_equal_the_dense_ones(
    rank: int, dtype: str, jit_compile: bool
) -> None:
    """Sums do not fit into a uint8; some quotients have a fraction."""

    @tf.function(jit_compile=jit_compile)
    def both(values: tf.Tensor, indices: tf.Tensor) -> list[tf.Tensor]:
        slices = tf.IndexedSlices(values, indices, tf.constant([10, 1]))
        whole = tf.convert_to_tensor(slices)
        found = tf.convert_to_tensor(hvd.allreduce(slices))
        return [found, hvd.allreduce(whole)]

    values = tf.cast([[201 + rank], [99], [1], [90]], dtype)
    for indices in ([0, 1, 2, 1], [0, 1 + rank, 9, 1 + rank]):
        found, dense = both(values, tf.constant(indices))
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, dense)


def test_gradients_of_integers_are_refused() -> None:
    """An optimizer leaves slices unmerged, and would round each of them."""
    variable = tf.Variable(tf.zeros([2, 2], tf.int32))
    gradient = tf.IndexedSlices(
        tf.ones([1, 2], tf.int32), tf.constant([0]), tf.constant([2, 2])
    )
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0))
    with pytest.raises(NotImplementedError, match=r"int32.*sparse_as_dense"):
        optimizer.apply([gradient], [variable])


def test_raises_for_bool() -> None:
    slices = tf.IndexedSlices(tf.constant([[True]]), [0])
    with pytest.raises(hvd.InvalidArgumentError, match="bool"):
        hvd.allreduce(slices, hvd.Sum)


@pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
def test_mismatch_of_rows_is_an_error_on_all_ranks(rank, size) -> None:
    slices = tf.IndexedSlices(tf.ones([1, 2 + (rank == 0)]), [rank])
    with pytest.raises(hvd.MismatchError, match=r"\[\*, 3\] on rank 0"):
        hvd.allreduce(slices, hvd.Sum, name="rows")
