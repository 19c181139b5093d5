"""Ops take part in process sets: members, names, roots, concurrency."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd

needs_two = pytest.mark.skipif("hvd.size() < 2", reason="needs 2 ranks")


def other_set(sets: dict[str, hvd.ProcessSet]) -> hvd.ProcessSet:
    """Returns the parity set without this rank; the two ids are neighbours."""
    step = 1 if hvd.rank() % 2 == 0 else -1
    return hvd.process_set_by_id(sets["parity"].process_set_id + step)


CALLS = {
    "allreduce": lambda s: hvd.allreduce(1.0, process_set=s),
    "grouped_allreduce": lambda s: hvd.grouped_allreduce([1.0], process_set=s),
    "allgather": lambda s: hvd.allgather([1.0], process_set=s),
    "grouped_allgather": lambda s: hvd.grouped_allgather(
        [[1.0]], process_set=s
    ),
    "broadcast": lambda s: hvd.broadcast(1.0, s.ranks[0], process_set=s),
    "broadcast_": lambda s: hvd.broadcast_(
        [tf.Variable(1.0)], s.ranks[0], process_set=s
    ),
    "alltoall": lambda s: hvd.alltoall([1.0, 2.0] * 6, process_set=s),
    "reducescatter": lambda s: hvd.reducescatter([1.0], process_set=s),
    "grouped_reducescatter": lambda s: hvd.grouped_reducescatter(
        [[1.0]], process_set=s
    ),
    "barrier": lambda s: hvd.barrier(process_set=s),
    "join": lambda s: hvd.join(process_set=s),
    "broadcast_object": lambda s: hvd.broadcast_object(
        1, s.ranks[0], process_set=s
    ),
    "allgather_object": lambda s: hvd.allgather_object(1, process_set=s),
    "broadcast_variables": lambda s: hvd.broadcast_variables(
        [tf.Variable(1.0)], s.ranks[0], process_set=s
    ),
}


@needs_two
@pytest.mark.parametrize("kind", CALLS)
def test_raises_on_a_rank_that_is_not_in_the_set(sets, rank, kind) -> None:
    with pytest.raises(hvd.InvalidArgumentError) as raised:
        CALLS[kind](other_set(sets))
    assert f"ank {rank}" in str(raised.value)
    ops = (
        "broadcast_object",
        "allgather_object",
        "broadcast_variables",
    )
    if kind not in ops:
        assert isinstance(raised.value, tf.errors.InvalidArgumentError)


@pytest.mark.parametrize("kind", CALLS)
def test_raises_for_a_set_that_is_not_registered(sets, kind) -> None:
    with pytest.raises(hvd.InvalidArgumentError, match="registered"):
        CALLS[kind](hvd.ProcessSet([0]))


@needs_two
def test_a_graph_may_hold_the_ops_of_other_sets(sets, rank) -> None:
    def branch(process_set: hvd.ProcessSet, x: tf.Tensor) -> tf.Tensor:
        included = hvd.process_set_included_op(process_set.process_set_id)
        return tf.cond(
            included == 1,
            lambda: hvd.allreduce(x, hvd.Sum, process_set=process_set),
            lambda: x * 0,
        )

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        return branch(sets["parity"], x) + branch(other_set(sets), x)

    for _ in range(2):
        assert step(tf.constant(float(rank))) == sum(sets["parity"].ranks)


@needs_two
def test_root_rank_must_be_in_the_set(sets, rank) -> None:
    own = sets["parity"]
    wrong = other_set(sets).ranks[0]
    text = f"one of {', '.join(map(str, own.ranks))}"
    for call in (
        lambda: hvd.broadcast(1.0, wrong, process_set=own),
        lambda: hvd.broadcast_([tf.Variable(1)], wrong, process_set=own),
        lambda: hvd.broadcast_object(1, wrong, process_set=own),
        lambda: hvd.broadcast_variables([], wrong, process_set=own),
    ):
        with pytest.raises(hvd.InvalidArgumentError, match=text) as raised:
            call()
        assert f"root_rank={wrong}" in str(raised.value)


def test_nameless_calls_pair_within_their_set(sets, rank, size) -> None:
    """Odd ranks make more calls in their set than even ranks do."""
    own = sets["parity"]
    for _ in range(3 + 2 * (rank % 2)):
        total = hvd.allreduce(rank, hvd.Sum, process_set=own)
        assert total == sum(own.ranks)
    assert hvd.allreduce(rank, hvd.Sum) == size * (size - 1) // 2


def test_sets_do_not_wait_for_each_other(sets, rank, size) -> None:
    """Even ranks call their own set first, odd ranks the global set."""
    own = sets["parity"]

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        calls = [
            lambda: hvd.allreduce(x, hvd.Sum, name="both"),
            lambda: hvd.allreduce(x, hvd.Sum, name="both", process_set=own),
        ]
        order = [0, 1] if rank % 2 else [1, 0]
        results = {i: calls[i]() for i in order}
        return [results[0], results[1]]

    for _ in range(5):
        both, half = step(tf.constant(rank))
        assert both == size * (size - 1) // 2
        assert half == sum(own.ranks)


def test_objects_and_variables_travel_in_their_set(sets, rank) -> None:
    own = sets["parity"]
    root = own.ranks[-1]
    assert hvd.broadcast_object(rank, root, process_set=own) == root
    assert hvd.allgather_object(rank, process_set=own) == own.ranks
    function = hvd.broadcast_object_fn(root, process_set=own)
    assert function(rank) == root
    variables = [tf.Variable(rank), keras.Variable([float(rank)] * 3)]
    hvd.broadcast_variables(variables, root, process_set=own)
    assert variables[0] == root
    assert variables[1].numpy().tolist() == [root] * 3


def test_mismatch_names_global_ranks(sets, rank) -> None:
    own = sets["parity"]
    last = own.ranks[-1]
    x = tf.ones([3 if rank == last else 2])
    if len(own.ranks) == 1:
        assert hvd.allreduce(x, process_set=own)[0] == 1
        return
    with pytest.raises(hvd.MismatchError, match=rf"\[3\] on rank {last}"):
        hvd.allreduce(x, name="differs", process_set=own)
    assert hvd.allreduce(rank, hvd.Sum, process_set=own) == sum(own.ranks)


def test_topology_ops_give_ranks_and_sizes(sets, run, rank, size) -> None:
    own = sets["parity"]

    def read() -> list[tf.Tensor]:
        return [
            hvd.rank_op(),
            hvd.size_op(),
            hvd.local_rank_op(),
            hvd.local_size_op(),
            hvd.size_op(own.process_set_id),
            hvd.process_set_included_op(),
            hvd.process_set_included_op(own.process_set_id, name="included"),
        ]

    place = [hvd.local_rank(), hvd.local_size()]
    expected = [rank, size, *place, own.size(), 1, 1]
    results = run(read)
    assert results == expected
    assert all(np.asarray(result).dtype == np.int32 for result in results)


@needs_two
def test_topology_ops_know_other_sets(sets, run) -> None:
    other = other_set(sets)

    def read() -> list[tf.Tensor]:
        return [
            hvd.size_op(other.process_set_id),
            hvd.process_set_included_op(other.process_set_id),
        ]

    assert run(read) == [other.size(), 0]


def test_topology_ops_raise_for_an_unknown_set(run) -> None:
    for op in (hvd.size_op, hvd.process_set_included_op):
        with pytest.raises(hvd.InvalidArgumentError, match="99"):
            run(lambda op=op: op(99))


def test_topology_ops_have_static_shapes() -> None:
    @tf.function
    def trace() -> None:
        assert hvd.rank_op().shape.rank == 0
        assert hvd.size_op().dtype == tf.int32

    trace()
