"""Asynchronous, in-place and grouped forms of the collectives on torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import hvd_keras as hvd
import hvd_keras.torch as hvd_torch

WAIT = hvd_torch.synchronize


def mine(*shape: int, dtype: Any = torch.float32) -> torch.Tensor:
    count = int(torch.Size(shape).numel())
    return (torch.arange(count) + 10 * hvd.rank()).to(dtype).reshape(shape)


def total(*shape: int) -> torch.Tensor:
    """The sum of `mine` over the ranks."""
    size = hvd.size()
    count = int(torch.Size(shape).numel())
    sums = torch.arange(count) * size + 5 * size * (size - 1)
    return sums.float().reshape(shape)


# Each begins a collective; what comes with it is the result.
BEGIN: dict[str, Callable[[], tuple[Any, Any]]] = {
    "allreduce": lambda: (
        hvd_torch.allreduce_async(mine(2, 3), hvd.Sum),
        [total(2, 3)],
    ),
    "grouped_allreduce": lambda: (
        hvd_torch.grouped_allreduce_async([mine(2), mine(3)], hvd.Sum),
        [total(2), total(3)],
    ),
    "allgather": lambda: (
        hvd_torch.allgather_async(mine(2)[: 1 + hvd.rank() % 2]),
        [
            torch.cat(
                [
                    torch.arange(1.0 + rank % 2) + 10 * rank
                    for rank in range(hvd.size())
                ]
            )
        ],
    ),
    "grouped_allgather": lambda: (
        hvd_torch.grouped_allgather_async([mine(1), mine(1).int()]),
        [
            torch.arange(hvd.size()) * 10.0,
            torch.arange(hvd.size(), dtype=torch.int32) * 10,
        ],
    ),
    "broadcast": lambda: (
        hvd_torch.broadcast_async(mine(2), 1),
        [torch.tensor([10.0, 11.0])],
    ),
    "alltoall": lambda: (
        hvd_torch.alltoall_async(mine(hvd.size())),
        [torch.arange(hvd.size()) * 10.0 + hvd.rank()],
    ),
    "reducescatter": lambda: (
        hvd_torch.reducescatter_async(mine(hvd.size()), hvd.Sum),
        [total(hvd.size())[hvd.rank() :][:1]],
    ),
    "grouped_reducescatter": lambda: (
        hvd_torch.grouped_reducescatter_async(
            [mine(hvd.size()), mine(hvd.size(), 2)], hvd.Sum
        ),
        [
            total(hvd.size())[hvd.rank() :][:1],
            total(hvd.size(), 2)[hvd.rank() :][:1],
        ],
    ),
}


def equal(found: Any, wanted: list[torch.Tensor]) -> bool:
    found = [found] if isinstance(found, torch.Tensor) else found
    return all(
        a.dtype == b.dtype and torch.equal(a, b)
        for a, b in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("kind", BEGIN)
def test_begins_and_ends(kind: str) -> None:
    handle, wanted = BEGIN[kind]()
    assert equal(WAIT(handle), wanted)
    assert hvd_torch.poll(handle)
    assert equal(WAIT(handle), wanted)  # a second time


def test_many_at_once_in_any_order() -> None:
    begun = [BEGIN[kind]() for kind in BEGIN for _ in range(3)]
    if hvd.rank() % 2:
        begun.reverse()
    for handle, wanted in begun:
        assert equal(WAIT(handle), wanted)


def test_a_call_that_misses_a_rank_is_not_done() -> None:
    handle = None
    if hvd.rank() == 0:
        handle = hvd_torch.allreduce_async(mine(2), hvd.Sum, name="late")
        assert not hvd_torch.poll(handle)
    hvd_torch.barrier()
    if handle is None:
        handle = hvd_torch.allreduce_async(mine(2), hvd.Sum, name="late")
    assert torch.equal(WAIT(handle), total(2))


def test_handles_that_nobody_keeps_do_no_harm() -> None:
    for _ in range(10):
        hvd_torch.allreduce_async(torch.ones(100_000))
        hvd_torch.allgather_async(torch.ones(1000))
    hvd_torch.barrier()
    assert torch.equal(hvd_torch.allreduce(mine(2), hvd.Sum), total(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_in_place(dtype: Any) -> None:
    x = mine(2, dtype=dtype)
    for reduce in (
        lambda x: hvd_torch.allreduce_(x, hvd.Sum),
        lambda x: WAIT(hvd_torch.allreduce_async_(x, hvd.Sum)),
        lambda x: hvd_torch.grouped_allreduce_([x], hvd.Sum)[0],
        lambda x: WAIT(hvd_torch.grouped_allreduce_async_([x], hvd.Sum))[0],
    ):
        x = mine(2, dtype=dtype)
        assert reduce(x) is x
        assert torch.equal(x, total(2).to(dtype))
    for send in (
        lambda x: hvd_torch.broadcast_(x, 1),
        lambda x: WAIT(hvd_torch.broadcast_async_(x, 1)),
    ):
        x = mine(2, dtype=dtype)
        assert send(x) is x
        assert x.tolist() == [10, 11]


def test_in_place_of_parts_of_a_tensor() -> None:
    x = mine(3, 3)
    kept = x.clone()
    hvd_torch.grouped_allreduce_([x[:, 0], x[:, 1]], hvd.Sum)
    assert torch.equal(x[:, :2], total(3, 3)[:, :2])
    assert torch.equal(x[:, 2], kept[:, 2])
    hvd_torch.broadcast_(x.t(), 0)
    assert torch.equal(x[:, 2], torch.tensor([2.0, 5.0, 8.0]))


def test_in_place_of_a_parameter() -> None:
    x = torch.nn.Parameter(mine(2))
    y = (x * x).sum()  # keeps the values
    hvd_torch.broadcast_(x, 0)
    assert x.requires_grad
    assert x.tolist() == [0, 1]
    with pytest.raises(RuntimeError, match="inplace"):
        y.backward()


def test_groups_have_gradients() -> None:
    size, rank = hvd.size(), hvd.rank()
    x = mine(size).requires_grad_()
    rows, numbers = hvd_torch.grouped_allgather([x, torch.arange(2)])
    assert not numbers.requires_grad
    weight = torch.arange(float(len(rows)))
    (rows * weight).sum().backward()
    assert x.grad is not None
    own = weight[rank * size : (rank + 1) * size]
    assert torch.equal(x.grad, own * size)
    x.grad = None
    parts = hvd_torch.grouped_reducescatter([x, 2 * x], hvd.Average)
    (parts[0] + parts[1]).sum().mul(1 + rank).backward()
    wanted = torch.arange(1.0, size + 1) * 3 / size
    assert torch.allclose(x.grad, wanted)


def test_compression_of_a_reducescatter() -> None:
    x = torch.full((hvd.size(),), 1 + 2.0**-12)
    half = hvd.Compression.fp16
    (part,) = hvd_torch.reducescatter(x, compression=half)
    assert part == 1


def test_sparse() -> None:
    size, rank = hvd.size(), hvd.rank()
    entries = [*range(rank + 1), 0]  # one of them twice
    x = torch.sparse_coo_tensor(
        torch.tensor([entries]), torch.ones(rank + 2, 2), (size + 1, 2)
    )
    found = WAIT(hvd_torch.sparse_allreduce_async(x, hvd.Sum))
    assert found.is_coalesced()
    counts = [float(size - entry) for entry in range(size + 1)]
    counts[0] += size
    assert found.to_dense()[:, 1].tolist() == counts
    empty = torch.sparse_coo_tensor(size=(4,))
    x = torch.sparse_coo_tensor([[2]], [3.0], (4,)) if rank else empty
    average = WAIT(hvd_torch.sparse_allreduce_async(x)).to_dense()
    assert average[2] == pytest.approx(3 * (size - 1) / size)


WRONG: dict[str, Callable[[], Any]] = {
    "op": lambda: hvd_torch.allreduce_async(mine(2), True, name="wrong"),
    "name": lambda: hvd_torch.grouped_allgather_async([mine(1)], name=""),
    "no tensors": lambda: hvd_torch.grouped_allreduce_async_([]),
    "root": lambda: hvd_torch.broadcast_async_(mine(1), 77, name="wrong"),
    "scalar": lambda: hvd_torch.grouped_reducescatter_async([mine()]),
    "splits": lambda: hvd_torch.alltoall_async(mine(2), [1] * 3, name="w"),
    "not a tensor": lambda: hvd_torch.allgather_async([1], name="wrong"),
    "dense": lambda: hvd_torch.sparse_allreduce_async(mine(1)),
    "float8": lambda: hvd_torch.allreduce_async_(
        mine(1, dtype=torch.float8_e4m3fn)
    ),
}


@pytest.mark.parametrize("call", WRONG)
def test_wrong_calls_raise_at_once(call: str) -> None:
    with pytest.raises(hvd.InvalidArgumentError):
        WRONG[call]()


def test_a_wrong_call_of_one_rank_fails_on_all() -> None:
    x = mine(2)
    with pytest.raises(hvd.InvalidArgumentError, match="op="):
        WAIT(
            hvd_torch.allreduce_async_(
                x, "mean" if hvd.rank() == 0 else hvd.Sum, name="one"
            )
        )


def test_ranks_that_disagree_are_told_when_they_wait() -> None:
    handle = hvd_torch.grouped_allreduce_async([mine(2), mine(2 + hvd.rank())])
    for _ in range(2):
        with pytest.raises(hvd.MismatchError, match="shape"):
            WAIT(handle)
    assert torch.equal(hvd_torch.allreduce(mine(2), hvd.Sum), total(2))


def test_a_name_in_use_is_refused() -> None:
    handles = []
    for is_first in (True, False):
        if is_first == (hvd.rank() == 0):
            for _ in range(2 if is_first else 1):
                handles.append(hvd_torch.allreduce_async(mine(2), name="twice"))
        hvd_torch.barrier()
    for handle in handles:
        with pytest.raises(hvd.InvalidArgumentError, match="twice"):
            WAIT(handle)
    hvd_torch.barrier()
