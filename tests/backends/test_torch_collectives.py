"""hvd_keras.torch moves and reduces tensors, and differentiates that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import contrastive
import numpy as np
import pytest
import torch

import hvd_keras as hvd
import hvd_keras.torch as hvd_torch


def mine(*shape: int) -> torch.Tensor:
    count = int(np.prod(shape))
    values = torch.arange(count, dtype=torch.float64) + 10 * hvd.rank()
    return values.reshape(shape)


def test_collectives() -> None:
    rank = hvd.rank()
    wanted = {None: [5, 6], hvd.Sum: [10, 12], hvd.Max: [10, 11]}
    for op, expected in wanted.items():
        assert hvd_torch.allreduce(mine(2), op).tolist() == expected
    scaled = hvd_torch.allreduce(
        mine(1), hvd.Sum, prescale_factor=0.5, postscale_factor=4.0
    )
    assert scaled.tolist() == [20]
    assert hvd_torch.allgather(mine(1 + rank)).tolist() == [0, 10, 11]
    assert hvd_torch.broadcast(mine(2), 1).tolist() == [10, 11]
    part = hvd_torch.reducescatter(mine(3), hvd.Sum)
    assert part.tolist() == ([10, 12] if rank == 0 else [14])
    own = [0, 1, 10, 11] if rank == 0 else [2, 3, 12, 13]
    assert hvd_torch.alltoall(mine(4)).tolist() == own
    rows, received = hvd_torch.alltoall(mine(3), [1 + rank, 2 - rank])
    assert rows.tolist() == ([0, 10, 11] if rank == 0 else [1, 2, 12])
    assert received == ([1, 2] if rank == 0 else [2, 1])


@pytest.mark.parametrize(
    "dtype", [torch.int8, torch.float16, torch.bfloat16, torch.float32]
)
def test_dtypes_and_groups(dtype: Any) -> None:
    x = torch.tensor([1, 0, 1], dtype=dtype)
    a, b = hvd_torch.grouped_allreduce([x, x[0]], hvd.Sum)
    assert a.dtype == b.dtype == dtype
    assert (a.tolist(), b.tolist(), b.shape) == ([2, 0, 2], 2, ())
    half = hvd_torch.allreduce(
        x.float() + 2.0**-12, compression=hvd.Compression.fp16
    )
    assert half.dtype == torch.float32
    assert half[0] == 1


def test_ranks_with_other_compressions_are_told() -> None:
    own = hvd.Compression.int8 if hvd.rank() == 1 else hvd.Compression.none
    with pytest.raises(hvd.MismatchError, match="int8 on rank 1"):
        hvd_torch.allreduce(mine(3), compression=own)
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = hvd_torch.DistributedOptimizer(
        torch.optim.SGD([parameter], 0.1), compression=own
    )
    parameter.sum().backward()
    with pytest.raises(hvd.MismatchError, match="int8 on rank 1"):
        optimizer.step()


def test_float8_is_moved_but_not_reduced() -> None:
    x = (torch.tensor([0.5, 2.0]) * hvd.rank()).to(torch.float8_e4m3fn)
    rows = hvd_torch.allgather(x)
    assert rows.dtype == x.dtype
    assert rows.float().tolist() == [0, 0, 0.5, 2]
    with pytest.raises(hvd.InvalidArgumentError, match="Received: float8"):
        hvd_torch.allreduce(x)


def scaled(call: Any, op: hvd.ReduceOp) -> Callable[[Any], Any]:
    return lambda x: call(x, op, prescale_factor=-0.5, postscale_factor=3.0)


# Each takes 4 numbers.
COLLECTIVES: dict[str, Callable[[Any], Any]] = {
    "group": lambda x: torch.cat(
        hvd_torch.grouped_allreduce(
            [x[:3], torch.tensor([1]), 2 * x, x * x], hvd.Sum
        )[::2]
    ),
    "allgather": hvd_torch.allgather,
    "allgather of uneven rows": lambda x: hvd_torch.allgather(
        x[: 4 - hvd.rank()]
    ),
    "broadcast": lambda x: hvd_torch.broadcast(x, 1),
    "alltoall": hvd_torch.alltoall,
    "alltoall with splits": lambda x: hvd_torch.alltoall(
        x, [3 - hvd.rank(), 1 + hvd.rank()]
    )[0],
    "product": lambda x: hvd_torch.allreduce(x, hvd.Product),
    "reducescatter of uneven rows": lambda x: hvd_torch.reducescatter(x[:3]),
}
for _op in (hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product):
    for _call in (hvd_torch.allreduce, hvd_torch.reducescatter):
        COLLECTIVES[f"{_call.__name__} {_op.name}"] = scaled(_call, _op)


def loss_of(name: str, x: torch.Tensor) -> torch.Tensor:
    y = COLLECTIVES[name](x)
    weight = torch.arange(1, len(y) + 1, dtype=y.dtype) + hvd.rank()
    return (weight * (y * y + y)).sum()


@pytest.mark.parametrize("name", COLLECTIVES)
def test_gradient_is_the_slope_of_the_sum_of_losses(name: str) -> None:
    start = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    start += hvd.rank() * torch.tensor([0.25, -0.5, 0.75, -1.0])
    x = start.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss_of(name, x), x)
    for rank in range(2):
        for i in range(4):
            step = torch.zeros(4, dtype=torch.float64)
            step[i] = 2.0**-8 * (hvd.rank() == rank)
            change = loss_of(name, start + step) - loss_of(name, start - step)
            slope = float(hvd_torch.allreduce(change, hvd.Sum)) * 2**7
            if rank == hvd.rank():
                assert float(gradient[i]) == pytest.approx(slope, 2e-3, 1e-3)


def test_second_gradients() -> None:
    for name in ("allgather", "broadcast", "alltoall", "product"):
        x = mine(4).requires_grad_()
        loss = COLLECTIVES[name](x).pow(3).sum()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        assert second.shape == x.shape
        if name == "broadcast":  # both ranks have the root's loss
            wanted = 2 * 6 * mine(4) * hvd.rank()
            np.testing.assert_array_equal(second, wanted)


def test_ties_share_the_gradient() -> None:
    x = torch.tensor([7.0, 5.0 - hvd.rank()], requires_grad=True)
    hvd_torch.allreduce(x, hvd.Max).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == ([1, 2] if hvd.rank() == 0 else [1, 0])


def test_wrong_calls_raise() -> None:
    x = torch.ones(3)
    for call in (
        lambda: hvd_torch.allreduce(x, True),
        lambda: hvd_torch.allreduce(x, name=""),
        lambda: hvd_torch.grouped_allreduce([]),
        lambda: hvd_torch.broadcast(x, 7),
        lambda: hvd_torch.allgather(torch.tensor(1)),
        lambda: hvd_torch.alltoall(x),
        lambda: hvd_torch.alltoall(x, [1, 1]),
        lambda: hvd_torch.reducescatter(x, hvd.Adasum),
    ):
        with pytest.raises(hvd.InvalidArgumentError):
            call()
    adasum = hvd_torch.allreduce(x.clone().requires_grad_(), hvd.Adasum)
    with pytest.raises(NotImplementedError, match="Adasum"):
        adasum.sum().backward()
    with pytest.raises(hvd.MismatchError):
        hvd_torch.allreduce(torch.ones(3 + hvd.rank()), name="odd")


@pytest.mark.parametrize("form", contrastive.FORMS)
def test_contrastive_loss_equals_one_process(form: str) -> None:
    contrastive.check_equal_to_one_process(form, False, "hvd_keras.torch")
