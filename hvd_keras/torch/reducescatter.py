"""Reducescatter: every rank gets a part of the reduction."""

from __future__ import annotations

from typing import Any

import torch

from hvd_keras._values.refusals import refuses
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Adasum, Average, ReduceOp
from hvd_keras.torch._call import (
    LINEAR,
    Call,
    Reduction,
    check_has_rows,
    checked_call,
    reduction,
    run,
)
from hvd_keras.torch._spread import spread
from hvd_keras.torch.allgather import gathered


@torch.compiler.disable
@refuses
def reducescatter(
    tensor: torch.Tensor,
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As `hvd.reducescatter`, for torch tensors and without `compression`.

    Example, on 2 ranks:

    >>> hvd_keras.torch.reducescatter(torch.arange(4), hvd.Sum)  # on rank 1
    tensor([4, 6])
    """
    call = checked_call("reducescatter", [tensor], name, process_set)
    check_has_rows("reducescatter", tensor, call)
    how = reduction(op, prescale_factor, postscale_factor)
    if how.op == Adasum:
        raise InvalidArgumentError(
            "A reducescatter must use Average, Sum, Min, Max or Product. "
            f"Received: op=Adasum ({call.name!r}). Use `allreduce`."
        )
    result: torch.Tensor = _Scattered.apply(call, how, tensor)
    return result


class _Scattered(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: Call, how: Reduction, tensor: torch.Tensor
    ) -> torch.Tensor:
        ctx.call, ctx.how = call, how
        if how.op not in LINEAR:
            ctx.save_for_backward(tensor)
        (result,) = run("reducescatter", [tensor], call, how)
        return result

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        call, how = ctx.call.part("gradient"), ctx.how
        total = gathered(upstream, call)
        if how.op not in LINEAR:
            (x,) = ctx.saved_tensors
            return None, None, spread(x, total, how, call)
        divisor = call.size if how.op == Average else 1
        return None, None, total * (how.factor / divisor)
