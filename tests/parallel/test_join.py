"""`hvd.join`, as `ops/join.py`: ranks have unequal amounts of data."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

needs_two = pytest.mark.skipif("hvd.size() < 2", reason="needs 2 ranks")
FLOATING = ["float16", "bfloat16", "float32", "float64"]
INTEGER = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


def active(step: int, ranks: list[int]) -> list[int]:
    """Returns the ranks that have a batch: rank i of the set has i + 1."""
    return ranks[step:]


def expected(
    op: hvd.ReduceOp, members: list[int], divisor: int, dtype: str
) -> float:
    values = [r + 1 for r in members]
    result: Any = {
        hvd.Sum: sum(values),
        hvd.Average: sum(values) / divisor,
        hvd.Min: min(values),
        hvd.Max: max(values),
        hvd.Product: np.prod(values),
    }[op]
    return np.trunc(result) if dtype in INTEGER else result


@pytest.mark.parametrize("over_active", [False, True])
def test_joined_ranks_change_nothing(process_set, rank, over_active) -> None:
    """All reductions and dtypes ignore them, alone and in groups."""
    ranks = process_set.ranks
    reductions = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]
    for step in range(ranks.index(rank) + 1):
        members = active(step, ranks)
        divisor = len(members) if over_active else len(ranks)
        for op in reductions:
            arrays = [
                tf.cast(tf.fill([4], rank + 1), dtype)
                for dtype in FLOATING + INTEGER
            ]
            group = hvd.grouped_allreduce(
                arrays, op, name=f"group {op}", process_set=process_set
            )
            one = hvd.allreduce(
                arrays[2], op, name=f"one {op}", process_set=process_set
            )
            for dtype, result in zip(
                [*FLOATING, *INTEGER, "float32"], [*group, one], strict=True
            ):
                want = expected(op, members, divisor, dtype)
                want = np.float64(want).astype(result.dtype.as_numpy_dtype)
                np.testing.assert_array_equal(result.numpy(), [want] * 4)
        options = {"process_set": process_set}
        assert hvd.allreduce(True, hvd.Min, name="all", **options)
        assert not hvd.allreduce(False, hvd.Max, name="any", **options)
    last = hvd.join(process_set=process_set, average_over_active=over_active)
    assert last.dtype == tf.int32
    assert last in ranks
    total = hvd.allreduce(rank, hvd.Sum, process_set=process_set)
    assert total == sum(ranks)


def test_adasum_with_joined_ranks(rank, size) -> None:
    """Adasum ignores zero vectors and adds orthogonal ones."""
    for step in range(rank + 1):
        x = tf.one_hot(rank, size) * (rank + 1.0)
        result = hvd.allreduce(x, hvd.Adasum, name="adasum")
        want = [r + 1 if r >= step else 0 for r in range(size)]
        assert result.numpy().tolist() == want
    hvd.join()


def test_returns_the_last_rank(rank, size) -> None:
    for last in (0, size - 1):
        if rank == last:
            time.sleep(0.2)
        assert hvd.join() == last


def test_join_works_in_a_function_and_a_graph(rank, size) -> None:
    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x, hvd.Sum, name="in a function")

    @tf.function
    def leave() -> tf.Tensor:
        return hvd.join()

    for i in range(rank + 1):
        assert step(tf.constant(1.0)) == size - i
    assert 0 <= leave() < size
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        assert 0 <= session.run(hvd.join()) < size
    assert step(tf.constant(1.0)) == size


@pytest.mark.parametrize("is_traced", [False, True])
def test_nameless_calls_meet_after_a_join(process_set, is_traced) -> None:
    if not process_set.included():
        return
    of_set = {"process_set": process_set}

    def reduce(x: tf.Tensor) -> tf.Tensor:
        return hvd.allreduce(x, hvd.Sum, **of_set)

    def leave() -> tf.Tensor:
        return hvd.join(**of_set)

    step, end = reduce, leave
    if is_traced:
        step, end = tf.function(reduce), tf.function(leave)
    for _ in range(2):
        for _ in range(process_set.rank() + 1):
            step(tf.ones(2))
        end()
        assert step(tf.ones(2))[0] == process_set.size()
        assert reduce(tf.ones(2))[0] == process_set.size()
        first = process_set.ranks[0]
        assert hvd.broadcast_object(hvd.rank(), first, **of_set) == first
        hvd.barrier(**of_set)


def test_gradients_of_uneven_batches(rank, size) -> None:
    """A rank goes on with training steps after others have joined."""
    for i in range(rank + 1):
        weight = tf.Variable(2.0)
        with tf.GradientTape() as tape:
            loss = weight * (rank + 1)
        gradient = tape.gradient(loss, weight)
        mean = hvd.allreduce(gradient, hvd.Average, name="uneven")
        assert mean == sum(r + 1 for r in range(i, size)) / size
    hvd.join()


def test_tapes_of_uneven_batches(rank, size) -> None:
    table = tf.Variable(tf.ones([3, 1]))
    for i in range(rank + 1):
        with tf.GradientTape() as tape:
            loss = tf.gather(table, [1]) * (rank + 1.0)
        tape = hvd.DistributedGradientTape(tape, sparse_as_dense=True)
        mean = sum(r + 1 for r in range(i, size)) / size
        gradient = tape.gradient(loss, table)
        np.testing.assert_allclose(gradient, [[0], [mean], [0]], rtol=1e-6)
    hvd.join()


OTHERS = {
    "allreduce of slices": lambda: hvd.allreduce(
        tf.IndexedSlices(tf.ones([1, 2]), [0], [3, 2]), name="other"
    ),
    "allgather": lambda: hvd.allgather([1.0], name="other"),
    "grouped_allgather": lambda: hvd.grouped_allgather([[1.0]], name="other"),
    "broadcast": lambda: hvd.broadcast(1.0, 0, name="other"),
    "alltoall": lambda: hvd.alltoall([1.0] * hvd.size(), name="other"),
    "reducescatter": lambda: hvd.reducescatter([1.0], name="other"),
    "barrier": lambda: hvd.barrier(name="other"),
}


@needs_two
@pytest.mark.parametrize("kind", OTHERS)
def test_other_collectives_fail_on_the_waiting_ranks(rank, size, kind) -> None:
    if rank != 0:
        with pytest.raises(hvd.MismatchError, match="rank 0") as raised:
            OTHERS[kind]()
        assert isinstance(raised.value, tf.errors.FailedPreconditionError)
        assert "join" in str(raised.value)
    hvd.join()
    OTHERS[kind]()  # after the join it works


@needs_two
def test_average_over_active_must_be_equal_on_all_ranks(rank, size) -> None:
    with pytest.raises(hvd.MismatchError, match="average_over_active"):
        hvd.join(average_over_active=rank == 0)
    assert 0 <= hvd.join() < size
