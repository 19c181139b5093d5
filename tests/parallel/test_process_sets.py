"""The core's collectives on NumPy arrays work in process sets."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from typing import Any

import numpy as np
import pytest
from process_set_calls import (  # noqa: F401
    _dynamic_job,
    _no_set_is_left,
    add_all,
    add_partition,
    meet,
    mine_of,
    remove_all,
    total,
)

import hvd_keras as hvd
from hvd_keras import _core

SUM = int(hvd.Sum)


# ---- Collectives ----


@pytest.mark.parametrize("num_parts", [2, 3])
def test_allreduce_is_over_the_members(rank, size, num_parts) -> None:
    mine = mine_of(add_partition(size, num_parts))
    ranks = mine.ranks
    for _ in range(3):
        assert total("x", rank, mine) == sum(ranks)
    (mean,) = _core.allreduce(
        "mean",
        [np.full(2, 6.0 * rank)],
        int(hvd.Average),
        process_set_id=mine.process_set_id,
    )
    assert mean.tolist() == [6.0 * sum(ranks) / len(ranks)] * 2


def test_allgather_is_over_the_members(rank, size) -> None:
    mine = mine_of(add_partition(size))
    rows = np.full((rank + 1, 2), rank)
    (gathered,) = _core.allgather(
        "x", [rows], process_set_id=mine.process_set_id
    )
    expected = [[r, r] for r in mine.ranks for _ in range(r + 1)]
    assert gathered.tolist() == expected


def test_root_rank_is_a_global_rank(rank, size) -> None:
    mine = mine_of(add_partition(size))
    for root_rank in mine.ranks:
        (result,) = _core.broadcast(
            f"from {root_rank}",
            [np.full(3, rank)],
            root_rank,
            process_set_id=mine.process_set_id,
        )
        assert result.tolist() == [root_rank] * 3


def test_alltoall_is_over_the_members(rank, size) -> None:
    mine = mine_of(add_partition(size))
    ranks, index = mine.ranks, mine.rank()
    # A rank sends i rows to member i, so none to the first.
    splits = list(range(len(ranks)))
    rows = np.repeat(np.array(ranks) * 10 + rank, splits)
    array, received = _core.alltoall(
        "x", rows, splits, process_set_id=mine.process_set_id
    )
    assert received == [index] * len(ranks)
    assert array.tolist() == [
        rank * 10 + sender for sender in ranks for _ in range(index)
    ]


def test_reducescatter_is_over_the_members(rank, size) -> None:
    mine = mine_of(add_partition(size))
    ranks, index = mine.ranks, mine.rank()
    num_rows = 2 * len(ranks) + 1  # the first member has one more
    (rows,) = _core.reducescatter(
        "x",
        [np.arange(num_rows) + rank],
        SUM,
        process_set_id=mine.process_set_id,
    )
    begin = 2 * index + min(index, 1)
    end = begin + (3 if index == 0 else 2)
    expected = [len(ranks) * row + sum(ranks) for row in range(begin, end)]
    assert rows.tolist() == expected


def test_barrier_waits_for_the_members_alone(rank, size) -> None:
    if size < 3:
        pytest.skip("a rank that does not come")
    pair, others = add_all([[0, 1], list(range(1, size))])
    last = size - 1
    if rank == last:
        # The rank outside does not enter the library.
        time.sleep(0.2)
    elif pair.included():
        for _ in range(10):
            _core.barrier("x", process_set_id=pair.process_set_id)
    if others.included():
        _core.barrier("x", process_set_id=others.process_set_id)


def test_join_is_over_the_members(rank, size) -> None:
    mine = mine_of(add_partition(size))
    ranks, index = mine.ranks, mine.rank()
    # Member i has i + 1 batches.
    for batch in range(index + 1):
        active = ranks[batch:]
        assert total(f"batch {batch}", rank, mine) == sum(active)
    last = _core.join(process_set_id=mine.process_set_id)
    assert last == ranks[-1]
    assert total("x", rank, mine) == sum(ranks)


def test_sets_may_overlap(rank, size) -> None:
    if size < 3:
        pytest.skip("two sets that overlap need three ranks")
    pairs = [[first, (first + 1) % size] for first in range(size)]
    sets = add_all(pairs)
    for _ in range(20):
        for pair, one in zip(pairs, sets, strict=True):
            if rank in pair:
                assert total("x", rank, one) == sum(pair)
        assert total("x", rank, hvd.global_process_set) == sum(range(size))


def test_sets_may_have_one_rank(rank, size) -> None:
    if size == 1:
        pytest.skip("the global set is the set of one")
    mine = mine_of(add_all([[r] for r in range(size)]))
    assert (mine.size(), mine.rank()) == (1, 0)
    for _ in range(10):
        assert total("x", rank, mine) == rank


def test_one_name_may_be_used_in_several_sets_at_once(rank, size) -> None:
    if size == 1:
        pytest.skip("one set alone")
    sets = [*add_partition(size), hvd.global_process_set]
    members = [one for one in sets if one.included()]
    with concurrent.futures.ThreadPoolExecutor(len(members)) as pool:
        for _ in range(50):
            calls = [pool.submit(total, "x", rank, one) for one in members]
            for call, one in zip(calls, members, strict=True):
                assert call.result() == sum(one.ranks)


def test_a_stalled_set_does_not_hold_the_others(rank, size) -> None:
    if size < 3:
        pytest.skip("a set that waits, and another rank")
    waiting, other = add_all([[0, 1], list(range(1, size))])
    result: list[float] = []
    thread = threading.Thread(
        target=lambda: result.append(total("late", rank, waiting))
    )
    if rank == 0:
        thread.start()
    for _ in range(20):
        if other.included():
            assert total("x", rank, other) == sum(other.ranks)
        assert total("x", rank, hvd.global_process_set) == sum(range(size))
    assert result == []
    meet()
    if rank == 1:
        thread.start()
    if rank < 2:
        thread.join(30)
        assert result == [1.0]


def test_a_rank_outside_may_not_call(rank, size) -> None:
    if size == 1:
        pytest.skip("there is no rank outside")
    (low,) = add_all([[0]])
    if rank == 0:
        assert total("x", 5, low) == 5
    else:
        with pytest.raises(hvd.InvalidArgumentError) as raised:
            total("x", 5, low)
        text = str(raised.value)
        expected = f"process set {low.process_set_id} (rank 0)"
        assert f"'x': rank {rank} is not in {expected}" in text
    with pytest.raises(hvd.InvalidArgumentError) as raised:
        _core.allreduce("x", [np.ones(2)], SUM, process_set_id=12345)
    assert "process set 12345 does not exist" in str(raised.value)


# ---- ProcessSet ----


def test_attributes_before_and_after_registration(rank, size) -> None:
    one = hvd.ProcessSet(range(size - 1, -1, -1))
    assert one.ranks == list(range(size))
    assert one.process_set_id is None
    assert (one.size(), one.rank(), one.included()) == (None, None, None)
    if size == 1:
        return
    top = hvd.ProcessSet([size - 1])
    assert hvd.add_process_set(top) is top
    assert top.process_set_id > 0
    assert top.size() == 1
    assert top.included() == (rank == size - 1)
    assert hvd.process_set_by_id(top.process_set_id) is top
    assert _core.process_set_ranks(top.process_set_id) == [size - 1]
    if rank == size - 1:
        assert top.rank() == 0
    else:
        with pytest.raises(ValueError, match=f"call on rank {rank}"):
            top.rank()
    assert hvd.remove_process_set(top) is True
    assert top.process_set_id is None
    assert (top.size(), top.rank(), top.included()) == (None, None, None)


def test_global_process_set(rank, size) -> None:
    everyone = hvd.global_process_set
    assert everyone.process_set_id == 0
    assert everyone.ranks == list(range(size))
    assert (everyone.size(), everyone.rank()) == (size, rank)
    assert everyone.included() is True
    assert hvd.process_set_by_id(0) is everyone


def test_sets_of_the_same_ranks_are_equal(size) -> None:
    assert hvd.ProcessSet([2, 0]) == hvd.ProcessSet((0, 2))
    assert hvd.ProcessSet([0]) != hvd.ProcessSet([1])
    assert len({hvd.ProcessSet([2, 0]), hvd.ProcessSet([0, 2])}) == 1
    assert hvd.ProcessSet(range(size)) == hvd.global_process_set


@pytest.mark.parametrize(
    "ranks", [[], [0, 0], [-1], [0.5], ["0"], "01", [True], 0, None]
)
def test_wrong_lists_of_ranks_are_refused(ranks: Any) -> None:
    with pytest.raises(hvd.InvalidArgumentError) as raised:
        hvd.ProcessSet(ranks)
    assert isinstance(raised.value, ValueError)
    assert f"Received: {ranks!r}" in str(raised.value)


# ---- Costs ----


def test_stats_are_the_sum_over_the_sets(rank, size) -> None:
    mine = mine_of(add_partition(size))
    before = hvd.stats()
    for _ in range(5):
        total("x", 1, mine)
        total("x", 1, hvd.global_process_set)
    after = hvd.stats()
    assert after["num_requests"] - before["num_requests"] == 10
    assert after["num_collectives"] - before["num_collectives"] == 10


def test_idle_sets_use_no_cpu_time(size) -> None:
    if size > 1:
        add_all([[r] for r in range(size)])
    if size > 2:
        add_all([[0, r] for r in range(1, size)])
    meet()
    time.sleep(0.2)  # a set that has just worked polls for a moment
    begin = time.process_time()
    time.sleep(1.0)
    assert time.process_time() - begin < 0.05
