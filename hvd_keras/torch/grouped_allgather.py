"""Grouped allgather: many tensors, gathered as one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd_keras._common.uncompiled import uncompiled
from hvd_keras._values.refusals import refuses
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Sum
from hvd_keras.torch._call import (
    Call,
    Handle,
    Reduction,
    begin,
    check_have_rows,
    checked_group,
    run,
)


@uncompiled
@refuses
def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As `hvd.grouped_allgather`, for torch tensors.

    Example, on 2 ranks:

    >>> tensors = [torch.tensor([hvd.rank()]), torch.ones(1)]
    >>> hvd_keras.torch.grouped_allgather(tensors)
    [tensor([0, 1]), tensor([1., 1.])]
    """
    call = _checked(tensors, name, process_set)
    return list(_Gathered.apply(call, *tensors))


@uncompiled
def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins a `grouped_allgather`, without a gradient; see `synchronize`."""
    return begun(tensors, name, process_set)


@refuses
def begun(
    tensors: Sequence[torch.Tensor],
    name: str | None,
    process_set: ProcessSet,
    **options: Any,
) -> Handle:
    """Begins the call; `options` are those of `begin`."""
    call = _checked(tensors, name, process_set)
    return begin("allgather", tensors, call, **options)


def gathered(tensor: torch.Tensor, call: Call) -> torch.Tensor:
    """Runs the call on one tensor, with its gradient."""
    (result,) = _Gathered.apply(call, tensor)
    gathered: torch.Tensor = result
    return gathered


def _checked(
    tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet
) -> Call:
    call = checked_group("allgather", tensors, name, process_set)
    check_have_rows("allgather", tensors, call)
    return call


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: Call, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.call = call
        ctx.num_rows = [len(tensor) for tensor in tensors]
        results = run("allgather", tensors, call)
        ctx.mark_non_differentiable(
            *(each for each in results if not each.is_floating_point())
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *upstreams: torch.Tensor) -> Any:
        gradients: list[torch.Tensor | None] = [None] * len(upstreams)
        for i, upstream in enumerate(upstreams):
            if upstream.is_floating_point():
                call = ctx.call.part(f"gradient.{i}")
                gradients[i] = _Own.apply(call, ctx.num_rows[i], upstream)
        return None, *gradients


class _Own(torch.autograd.Function):
    """Sums tensors over the ranks; each takes rows, in order of rank."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, num_rows: int, tensor: torch.Tensor
    ) -> torch.Tensor:
        ctx.call = call
        mine = torch.tensor([num_rows])
        (rows,) = run("allgather", [mine], call.part("rows"))
        if bool((rows == num_rows).all()):
            (own,) = run("reducescatter", [tensor], call, how=Reduction(Sum))
            return own
        (whole,) = run("allreduce", [tensor], call, how=Reduction(Sum))
        begin = int(rows[: call.index].sum())
        return whole[begin : begin + num_rows].clone()

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        return None, None, gathered(upstream, ctx.call.part("gradient"))
