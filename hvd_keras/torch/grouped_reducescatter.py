"""Grouped reducescatter: many tensors, reduced and dealt out as one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd_keras._common.uncompiled import uncompiled
from hvd_keras._values.refusals import refuses
from hvd_keras.compression import Compression, Compressor, reduce_compressed
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Adasum, Average, ReduceOp
from hvd_keras.torch._call import (
    LINEAR,
    Call,
    Handle,
    Reduction,
    begin,
    check_have_rows,
    checked_group,
    reduction,
    run,
)
from hvd_keras.torch._spread import spread
from hvd_keras.torch.grouped_allgather import gathered


@uncompiled
@refuses
def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: type[Compressor] | Compressor = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As `hvd.grouped_reducescatter`, for torch tensors.

    Example, on 2 ranks:

    >>> tensors = [torch.ones(2), torch.arange(4)]
    >>> hvd_keras.torch.grouped_reducescatter(tensors, hvd.Sum)  # on rank 1
    [tensor([2.]), tensor([4, 6])]
    """
    scales = prescale_factor, postscale_factor
    call, how = _checked(tensors, op, scales, name, process_set)
    return reduce_compressed(
        compression, tensors, lambda wires: _Scattered.apply(call, how, *wires)
    )


@uncompiled
def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins a `grouped_reducescatter`, without a gradient."""
    scales = prescale_factor, postscale_factor
    return begun(tensors, op, scales, name, process_set)


@refuses
def begun(
    tensors: Sequence[torch.Tensor],
    op: ReduceOp | None,
    scales: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
    **options: Any,
) -> Handle:
    """Begins the reduction; `options` are those of `begin`."""
    call, how = _checked(tensors, op, scales, name, process_set)
    return begin("reducescatter", tensors, call, how=how, **options)


def _checked(
    tensors: Sequence[torch.Tensor],
    op: ReduceOp | None,
    scales: tuple[float, float],
    name: str | None,
    process_set: ProcessSet,
) -> tuple[Call, Reduction]:
    call = checked_group("reducescatter", tensors, name, process_set)
    check_have_rows("reducescatter", tensors, call)
    how = reduction(op, *scales)
    if how.op == Adasum:
        raise InvalidArgumentError(
            "A reducescatter must use Average, Sum, Min, Max or Product. "
            f"Received: op=Adasum ({call.name!r}). Use `allreduce`."
        )
    return call, how


class _Scattered(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: Call, how: Reduction, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.call, ctx.how = call, how
        if how.op not in LINEAR:
            ctx.save_for_backward(*tensors)
        results = run("reducescatter", tensors, call, how=how)
        ctx.mark_non_differentiable(
            *(each for each in results if not each.is_floating_point())
        )
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *upstreams: torch.Tensor) -> Any:
        how = ctx.how
        gradients: list[torch.Tensor | None] = [None] * len(upstreams)
        for i, upstream in enumerate(upstreams):
            if not upstream.is_floating_point():
                continue
            call = ctx.call.part(f"gradient.{i}")
            total = gathered(upstream, call)
            if how.op in LINEAR:
                divisor = call.size if how.op == Average else 1
                gradients[i] = total * (how.factor / divisor)
            else:
                gradients[i] = spread(ctx.saved_tensors[i], total, how, call)
        return None, None, *gradients
