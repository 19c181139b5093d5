"""Allgather: every rank gets the rows of all ranks."""

from __future__ import annotations

from typing import Any

import torch

from hvd_keras._values.refusals import refuses
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Sum
from hvd_keras.torch._call import (
    Call,
    Reduction,
    check_has_rows,
    checked_call,
    run,
)


@torch.compiler.disable
@refuses
def allgather(
    tensor: torch.Tensor,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As `hvd.allgather`, for torch tensors.

    Example, on 2 ranks:

    >>> hvd_keras.torch.allgather(torch.tensor([hvd.rank()]))
    tensor([0, 1])
    """
    call = checked_call("allgather", [tensor], name, process_set)
    check_has_rows("allgather", tensor, call)
    return gathered(tensor, call)


def gathered(tensor: torch.Tensor, call: Call) -> torch.Tensor:
    """Runs the call, with its gradient."""
    result: torch.Tensor = _Gathered.apply(call, tensor)
    return result


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, tensor: torch.Tensor) -> torch.Tensor:
        ctx.call, ctx.num_rows = call, len(tensor)
        (result,) = run("allgather", [tensor], call)
        return result

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        return None, _Own.apply(
            ctx.call.part("gradient"), ctx.num_rows, upstream
        )


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
            (own,) = run("reducescatter", [tensor], call, Reduction(Sum))
            return own
        (whole,) = run("allreduce", [tensor], call, Reduction(Sum))
        begin = int(rows[: call.index].sum())
        return whole[begin : begin + num_rows].clone()

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        return None, None, gathered(upstream, ctx.call.part("gradient"))
