"""All ranks add and remove process sets together, in `init` and later."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import pathlib
import resource
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from process_set_calls import (  # noqa: F401
    _dynamic_job,
    _no_set_is_left,
    add_all,
    meet,
    partition,
    remove_all,
    total,
)

import hvd_keras as hvd
from hvd_keras import _core, process_set

SUM = int(hvd.Sum)


# ---- Adding and removing ----


def test_an_id_is_never_used_again(size) -> None:
    if size == 1:
        pytest.skip("no other set")
    seen = set()
    one = hvd.ProcessSet([0])
    for _ in range(5):
        hvd.add_process_set(one)
        seen.add(one.process_set_id)
        hvd.remove_process_set(one)
    assert len(seen) == 5
    for process_set_id in seen:
        with pytest.raises(ValueError, match="does not exist"):
            hvd.process_set_by_id(process_set_id)
        with pytest.raises(ValueError, match="does not exist"):
            _core.allreduce(
                "x", [np.ones(1)], SUM, process_set_id=process_set_id
            )


def resources() -> tuple[int, int, int]:
    """Counts descriptors, our threads and our mappings in this process."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        num_shared = sum("memfd:hvd_keras" in line for line in maps)
    # TensorFlow's threads come and go.
    num_threads = 0
    for path in pathlib.Path("/proc/self/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # it has just ended
            num_threads += path.read_text("ascii").startswith("hvd_")
    assert num_threads > 0
    return len(os.listdir("/proc/self/fd")), num_threads, num_shared


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def test_adding_and_removing_leaks_nothing(rank, size) -> None:
    if size == 1:
        pytest.skip("no other set")

    def once() -> None:
        pairs = [[0, r] for r in range(1, size, 2)] if size > 2 else []
        sets = add_all(partition(size) + pairs)
        for one in sets:
            if one.included():
                total("x", rank, one)
        for one in sets:
            assert hvd.remove_process_set(one)

    for _ in range(10):
        once()
    before, resident = resources(), resident_bytes()
    for _ in range(100):
        once()
    deadline = time.monotonic() + 10  # others close descriptors, too
    while resources() != before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert resources() == before
    # Each set uses hundreds of kilobytes while it lives.
    assert resident_bytes() - resident < 8 << 20


def test_removing_an_unregistered_set_returns_false(size) -> None:
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert hvd.remove_process_set(hvd.ProcessSet([0])) is False
    assert hvd.global_process_set.process_set_id == 0
    with pytest.raises(ValueError, match="must be a ProcessSet"):
        hvd.remove_process_set(0)  # type: ignore[arg-type]


def test_removal_fails_pending_calls(rank, size) -> None:
    if size < 3:
        pytest.skip("a set of two that is not the global one")
    (pair,) = add_all([[0, 1]])
    process_set_id = pair.process_set_id
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        before = hvd.stats()["num_requests"]
        call = pool.submit(total, "alone", 1, pair) if rank == 1 else None
        while call and hvd.stats()["num_requests"] == before:
            time.sleep(0.001)
        hvd.remove_process_set(pair)
        if call is not None:
            with pytest.raises(hvd.ShutdownError) as raised:
                call.result(30)
            text = str(raised.value)
            assert "allreduce 'alone'" in text
            assert f"process set {process_set_id} was removed" in text
    assert total("x", 1, hvd.global_process_set) == size


@contextlib.contextmanager
def raises_everywhere(kind: type[Exception], *texts: str) -> Iterator[None]:
    """Checks that the block raises and registers nothing, on every rank."""
    before = _core.process_set_ids()
    with pytest.raises(kind) as raised:
        yield
    assert isinstance(raised.value, ValueError)
    for text in texts:
        assert text in str(raised.value)
    assert _core.process_set_ids() == before
    meet("after an error")


def test_ranks_outside_of_the_job_are_refused(size) -> None:
    with raises_everywhere(hvd.InvalidArgumentError, f"[0, {size})"):
        hvd.add_process_set([0, size])


def test_a_set_twice_is_refused(size) -> None:
    with raises_everywhere(hvd.InvalidArgumentError, "a second time"):
        hvd.add_process_set(list(range(size)))
    with raises_everywhere(hvd.InvalidArgumentError, "a second time"):
        hvd.add_process_set(hvd.global_process_set)
    if size > 1:
        one = hvd.add_process_set([0])
        for again in (one, [0], hvd.ProcessSet([0])):
            with raises_everywhere(hvd.InvalidArgumentError, "a second time"):
                hvd.add_process_set(again)


def test_ranks_that_add_different_sets_are_told_both(rank, size) -> None:
    if size < 3:
        pytest.skip("two different sets")
    mine = [0, 1] if rank < size - 1 else [0, 2]
    one = hvd.ProcessSet(mine)
    with raises_everywhere(
        hvd.ProcessSetMismatchError,
        "add_process_set([0, 1]) on rank 0",
        f"add_process_set([0, 2]) on rank {size - 1}",
    ):
        hvd.add_process_set(one)
    assert one.process_set_id is None
    # The order of the ranks does not matter.
    hvd.add_process_set([0, 1] if rank == 0 else [1, 0])


def test_adding_and_removing_at_once_is_an_error(rank, size) -> None:
    if size == 1:
        pytest.skip("one rank agrees with itself")
    one = hvd.add_process_set([0])
    with raises_everywhere(
        hvd.ProcessSetMismatchError,
        f"remove_process_set(id {one.process_set_id}) on rank 0",
        "add_process_set([1]) on rank 1",
    ):
        if rank == 0:
            hvd.remove_process_set(one)
        else:
            hvd.add_process_set([1])
    assert one.size() == 1


def test_an_error_of_one_rank_reaches_all(rank, size) -> None:
    if size == 1:
        pytest.skip("no other rank")
    with raises_everywhere(hvd.InvalidArgumentError, "each once"):
        hvd.add_process_set([0, 0] if rank == size - 1 else [0])


@contextlib.contextmanager
def no_descriptors(victim: bool) -> Iterator[None]:
    """Keeps the victim from opening files."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if victim:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_without_memory_fails_all(rank, size, victim) -> None:
    """Rank 0 creates the shared memory, and rank 1 opens it."""
    if size < 3:
        pytest.skip("a set of two that is not the global one")
    before = resources()
    with (
        no_descriptors(rank == victim),
        pytest.raises(hvd.HvdError) as raised,
    ):
        hvd.add_process_set([0, 1])
    assert "Too many open files" in str(raised.value)
    if rank != victim:
        assert f"Rank {victim} failed" in str(raised.value)
    assert _core.process_set_ids() == [0]
    # What others held may have gone meanwhile: fewer descriptors are no leak.
    now = resources()
    assert all(kept <= had for kept, had in zip(now, before, strict=True)), now
    pair = hvd.add_process_set([0, 1])
    if pair.included():
        assert total("x", rank, pair) == 1


def test_a_set_without_its_gpu_communicator_is_not_registered(
    monkeypatch, size
) -> None:
    if size == 1 or _core.gpu_count() > 0:
        pytest.skip("two ranks without a GPU")
    monkeypatch.setattr(process_set._registry, "connects_gpus", True)
    with pytest.raises(hvd.InternalError, match="cannot take part"):
        hvd.add_process_set([0])
    monkeypatch.undo()
    assert _core.process_set_ids() == [0]
    hvd.remove_process_set(hvd.add_process_set([0]))


# ---- init and shutdown ----


@pytest.fixture
def without_job(rank: int, size: int) -> Iterator[None]:
    """Lets the test call init() itself."""
    hvd.shutdown()
    yield
    hvd.shutdown()
    hvd.init(process_sets="dynamic")


def test_init_registers_the_given_sets(without_job, rank, size) -> None:
    if size == 1:
        hvd.init(process_sets=[])
        assert _core.process_set_ids() == [0]
        return
    top = hvd.ProcessSet([size - 1])
    for _ in range(2):
        hvd.init(process_sets=[top, [0]])
        assert top.process_set_id is not None
        top_id, low_id = _core.process_set_ids()[1:]
        assert hvd.process_set_by_id(top_id) is top
        assert hvd.process_set_by_id(low_id).ranks == [0]
        assert hvd.global_process_set.ranks == list(range(size))
        if top.included():
            assert total("x", 4, top) == 4
        hvd.shutdown()
        assert top.process_set_id is None
        assert hvd.global_process_set.ranks is None
        assert hvd.global_process_set.size() is None
        assert hvd.global_process_set.process_set_id == 0
        with pytest.raises(hvd.NotInitializedError, match="process_set_by_id"):
            hvd.process_set_by_id(top_id)
        with pytest.raises(hvd.NotInitializedError, match="add_process_set"):
            hvd.add_process_set([0])
        with pytest.raises(hvd.NotInitializedError, match="init"):
            _core.process_set_ranks(top_id)
        with pytest.raises(hvd.NotInitializedError, match="init"):
            _core.allreduce("x", [np.ones(1)], SUM, process_set_id=top_id)
    hvd.init()


def test_fixed_sets_cannot_be_changed(without_job) -> None:
    hvd.init()
    for call in (
        lambda: hvd.add_process_set([0]),
        lambda: hvd.remove_process_set(hvd.global_process_set),
    ):
        with pytest.raises(hvd.InvalidArgumentError) as raised:
            call()
        assert 'init(process_sets="dynamic")' in str(raised.value)
        assert "HVD_DYNAMIC_PROCESS_SETS=1" in str(raised.value)


@pytest.mark.parametrize("prefix", ["HVD", "HOROVOD"])
def test_the_setting_makes_sets_dynamic(
    without_job, monkeypatch, size, prefix
) -> None:
    monkeypatch.setenv(f"{prefix}_DYNAMIC_PROCESS_SETS", "1")
    hvd.init(process_sets=[[0]] if size > 1 else None)
    if size > 1:
        assert hvd.remove_process_set(
            hvd.process_set_by_id(_core.process_set_ids()[1])
        )
        hvd.add_process_set([1])


@pytest.mark.parametrize(
    "value",
    ["static", 3, [0, 1], [[0, 0]], [[99]], [[]], hvd.ProcessSet([0])],
    ids=str,
)
def test_init_refuses_other_values(without_job, value: Any) -> None:
    with pytest.raises(ValueError, match="Received"):
        hvd.init(process_sets=value)
    assert not hvd.is_initialized()


def test_init_with_different_sets_is_an_error_on_all_ranks(
    without_job, rank, size
) -> None:
    if size == 1:
        pytest.skip("one rank agrees with itself")
    with pytest.raises(hvd.ProcessSetMismatchError) as raised:
        hvd.init(process_sets=[[0]] if rank < size - 1 else "dynamic")
    text = str(raised.value)
    assert "process_sets=[[0]] on rank 0" in text
    assert f"process_sets=dynamic on rank {size - 1}" in text
    assert isinstance(raised.value, ValueError)
    assert not hvd.is_initialized()
    hvd.init()  # now the ranks agree
    meet()


def test_init_takes_comm_of_all_ranks(without_job, size) -> None:
    hvd.init(list(range(size)))
    meet()


class Communicator:
    """Looks like a communicator of mpi4py."""

    def Get_rank(self) -> int:  # noqa: N802
        return 0


def test_init_refuses_other_comms(without_job, size) -> None:
    with pytest.raises(NotImplementedError, match="no MPI"):
        hvd.init(Communicator())
    with pytest.raises(NotImplementedError, match="no MPI"):
        hvd.ProcessSet(Communicator())
    with pytest.raises(ValueError, match="list of all ranks"):
        hvd.init([size])
    if size > 1:
        with pytest.raises(NotImplementedError, match="process_sets="):
            hvd.init([0])
    assert not hvd.is_initialized()
    hvd.init()
    meet()
