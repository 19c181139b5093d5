"""Every op works with every dtype, reduction, kind of graph and process set.

Inputs are formulas of the rank, so expected values are exact. One test makes
many calls in one graph, more than a thousand for each kind of run. The fusion
threshold is small, so that some tensors are above it and some below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from conftest import parity_sets

import hvd_keras as hvd

pytestmark = pytest.mark.thorough(2, 3)

FLOATING = ["float16", "bfloat16", "float32", "float64"]
INTEGER = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES = ["bool", *FLOATING, *INTEGER]
REDUCTIONS = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]
FUSION_THRESHOLD_BYTES = 4096
LARGE = 1031  # elements: above the threshold, except in one-byte types
SHAPES = [(), (0,), (1,), (3, 5), (LARGE,)]
# First dimensions of tensors that are cut into rows; a row has 3 elements.
NUM_ROWS = [0, 1, 3, 4, LARGE]

Call = tuple[Callable[..., Any], list[np.ndarray], Any]


@pytest.fixture(scope="module")
def sets() -> Iterator[dict[str, hvd.ProcessSet]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HVD_FUSION_THRESHOLD", str(FUSION_THRESHOLD_BYTES))
        with parity_sets() as made:
            yield made


def values(shape: tuple[int, ...], rank: int, dtype: str) -> np.ndarray:
    """Returns 0, 1, 2, 0, ... plus the rank; as bool, whether that is even."""
    numbers = np.arange(math.prod(shape)).reshape(shape) % 3 + rank
    if dtype == "bool":
        return numbers % 2 == 0
    return numbers.astype(tf.as_dtype(dtype).as_numpy_dtype)


def reductions(dtype: str) -> list[hvd.ReduceOp]:
    return [hvd.Min, hvd.Max] if dtype == "bool" else REDUCTIONS


def reduced(arrays: list[np.ndarray], op: hvd.ReduceOp) -> np.ndarray:
    """Reduces the ranks' arrays with NumPy."""
    dtype = arrays[0].dtype
    if dtype.kind == "b":
        stacked = np.stack(arrays)
        return stacked.all(0) if op == hvd.Min else stacked.any(0)
    wide = np.stack([array.astype(np.float64) for array in arrays])
    result = {
        hvd.Sum: lambda: wide.sum(0),
        hvd.Average: lambda: wide.sum(0) / len(arrays),
        hvd.Min: lambda: wide.min(0),
        hvd.Max: lambda: wide.max(0),
        hvd.Product: lambda: wide.prod(0),
    }[op]()
    return result.astype(dtype)  # integers: towards zero


def share(array: np.ndarray, index: int, size: int) -> np.ndarray:
    """Returns the rows that a rank gets from a reducescatter."""
    small, num_larger = divmod(len(array), size)
    begin = index * small + min(index, num_larger)
    return array[begin : begin + small + (index < num_larger)]


def check(run: Callable[..., Any], calls: list[Call]) -> None:
    """Makes all calls at once and compares outputs with expected values."""
    arrays = [array for _, inputs, _ in calls for array in inputs]

    def make_calls(*tensors: tf.Tensor) -> list[Any]:
        left = iter(tensors)
        return [
            function(*(next(left) for _ in inputs))
            for function, inputs, _ in calls
        ]

    outputs = run(make_calls, *arrays)
    for (_, inputs, expected), output in zip(calls, outputs, strict=True):
        flat = tf.nest.flatten(output)
        for got, want in zip(flat, tf.nest.flatten(expected), strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(
                np.asarray(got), want, err_msg=str(inputs)[:200]
            )


@pytest.mark.thorough(4)
def test_allreduce(run, rank, process_set) -> None:
    ranks = process_set.ranks
    calls = [
        (
            lambda x, op=op: hvd.allreduce(x, op, process_set=process_set),
            [values(shape, rank, dtype)],
            reduced([values(shape, r, dtype) for r in ranks], op),
        )
        for dtype in DTYPES
        for op in reductions(dtype)
        for shape in SHAPES
    ]
    check(run, calls)


@pytest.mark.parametrize("dtype", FLOATING)
def test_adasum(run, rank, process_set, dtype: str) -> None:
    """Adasum adds orthogonal vectors and averages parallel ones."""
    ranks = process_set.ranks
    np_dtype = tf.as_dtype(dtype).as_numpy_dtype
    calls = []
    for length in (len(ranks), LARGE):
        own = np.zeros(length, np_dtype)
        own[ranks.index(rank)] = rank + 1
        total = np.zeros(length, np_dtype)
        total[: len(ranks)] = np.array(ranks) + 1
        for array, expected in ((own, total), (total, total)):
            calls.append(
                (
                    lambda x: hvd.allreduce(
                        x, hvd.Adasum, process_set=process_set
                    ),
                    [array],
                    expected,
                )
            )
    check(run, calls)


@pytest.mark.thorough(4)
def test_grouped_allreduce(run, rank, process_set) -> None:
    """Each group has members of all dtypes, and shapes in turn."""
    ranks = process_set.ranks
    calls = []
    for op in REDUCTIONS:
        dtypes = [dtype for dtype in DTYPES if op in reductions(dtype)]
        for turn in range(len(SHAPES)):

            def group(r: int, dtypes=dtypes, turn=turn) -> list[np.ndarray]:
                return [
                    values(SHAPES[(i + turn) % len(SHAPES)], r, dtype)
                    for i, dtype in enumerate(dtypes)
                ]

            by_member = zip(*(group(r) for r in ranks), strict=True)
            calls.append(
                (
                    lambda *x, op=op: hvd.grouped_allreduce(
                        list(x), op, process_set=process_set
                    ),
                    group(rank),
                    [reduced(list(arrays), op) for arrays in by_member],
                )
            )
    check(run, calls)


def test_allgather(run, rank, process_set) -> None:
    """Rank r has r rows more than the shape, or none if it is odd."""
    ranks = process_set.ranks
    calls = []
    for dtype in DTYPES:
        for rows_of in (
            lambda r: r + 1,
            lambda r: 3 * (1 - r % 2),
            lambda r: 0,
            lambda r: LARGE - r,
        ):
            parts = [values((rows_of(r), 3), r, dtype) for r in ranks]
            calls.append(
                (
                    lambda x: hvd.allgather(x, process_set=process_set),
                    [parts[ranks.index(rank)]],
                    np.concatenate(parts),
                )
            )
    check(run, calls)


def test_grouped_allgather(run, rank, process_set) -> None:
    ranks = process_set.ranks

    def group(r: int) -> list[np.ndarray]:
        return [
            values(((r + i) % 4, i % 3), r, dtype)
            for i, dtype in enumerate(DTYPES)
        ]

    gathered = [
        np.concatenate(parts)
        for parts in zip(*(group(r) for r in ranks), strict=True)
    ]
    call = (
        lambda *x: hvd.grouped_allgather(list(x), process_set=process_set),
        group(rank),
        gathered,
    )
    check(run, [call] * 3)


@pytest.mark.thorough(4)
def test_broadcast(run, rank, process_set) -> None:
    calls = [
        (
            lambda x, root=root: hvd.broadcast(
                x, root, process_set=process_set
            ),
            [values(shape, rank, dtype)],
            values(shape, root, dtype),
        )
        for dtype in DTYPES
        for shape in SHAPES
        for root in process_set.ranks
    ]
    check(run, calls)


def test_alltoall(run, rank, process_set) -> None:
    """Rank r sends (r + s) % 3 rows, or more, to rank s."""
    ranks = process_set.ranks
    own = ranks.index(rank)
    calls = []
    for dtype in DTYPES:
        for more in (0, 1, LARGE):

            def splits(r: int, more: int = more) -> list[int]:
                return [(r + s) % 3 + more for s in ranks]

            def part(r: int, s: int, dtype=dtype, splits=splits) -> np.ndarray:
                rows = values((sum(splits(r)), 3), r, dtype)
                ends = np.cumsum(splits(r))
                i = ranks.index(s)
                return rows[ends[i] - splits(r)[i] : ends[i]]

            calls.append(
                (
                    lambda x, cut: hvd.alltoall(
                        x, cut, process_set=process_set
                    ),
                    [
                        values((sum(splits(rank)), 3), rank, dtype),
                        np.array(splits(rank), np.int32 if more else np.int64),
                    ],
                    (
                        np.concatenate([part(r, rank) for r in ranks]),
                        np.array([splits(r)[own] for r in ranks], np.int32),
                    ),
                )
            )
        for rows_each in (0, 1, 2):
            equal = [
                values((rows_each * len(ranks), 2), r, dtype) for r in ranks
            ]
            mine = slice(own * rows_each, (own + 1) * rows_each)
            calls.append(
                (
                    lambda x: hvd.alltoall(x, process_set=process_set),
                    [equal[own]],
                    np.concatenate([rows[mine] for rows in equal]),
                )
            )
    check(run, calls)


@pytest.mark.thorough(4)
def test_reducescatter(run, rank, process_set) -> None:
    ranks = process_set.ranks
    calls = []
    for dtype in DTYPES:
        for op in reductions(dtype):
            for num_rows in NUM_ROWS:
                arrays = [values((num_rows, 3), r, dtype) for r in ranks]
                calls.append(
                    (
                        lambda x, op=op: hvd.reducescatter(
                            x, op, process_set=process_set
                        ),
                        [arrays[ranks.index(rank)]],
                        share(
                            reduced(arrays, op), ranks.index(rank), len(ranks)
                        ),
                    )
                )
    check(run, calls)


def test_grouped_reducescatter(run, rank, process_set) -> None:
    ranks = process_set.ranks
    calls = []
    for op in REDUCTIONS:
        dtypes = [dtype for dtype in DTYPES if op in reductions(dtype)]

        def group(r: int, dtypes=dtypes) -> list[np.ndarray]:
            return [
                values((NUM_ROWS[i % len(NUM_ROWS)], i % 3), r, dtype)
                for i, dtype in enumerate(dtypes)
            ]

        by_member = zip(*(group(r) for r in ranks), strict=True)
        calls.append(
            (
                lambda *x, op=op: hvd.grouped_reducescatter(
                    list(x), op, process_set=process_set
                ),
                group(rank),
                [
                    share(
                        reduced(list(arrays), op),
                        ranks.index(rank),
                        len(ranks),
                    )
                    for arrays in by_member
                ],
            )
        )
    check(run, calls)


@pytest.mark.parametrize("dtype", FLOATING)
def test_factors(run, rank, process_set, dtype: str) -> None:
    ranks = process_set.ranks
    factors = {"prescale_factor": 0.5, "postscale_factor": 4.0}
    arrays = [values((5, 3), r, dtype) for r in ranks]
    own = [arrays[ranks.index(rank)]]
    options = {"process_set": process_set, **factors}
    calls = []
    for op in (hvd.Sum, hvd.Min, hvd.Max):
        expected = 2 * reduced(arrays, op)
        mine = share(expected, ranks.index(rank), len(ranks))
        calls += [
            (lambda x, op=op: hvd.allreduce(x, op, **options), own, expected),
            (lambda x, op=op: hvd.reducescatter(x, op, **options), own, mine),
        ]
    check(run, calls)
