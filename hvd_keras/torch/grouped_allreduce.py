"""Grouped allreduce: many tensors, reduced as one request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd_keras._common import training_signs
from hvd_keras._common.uncompiled import uncompiled
from hvd_keras._values.refusals import refuses
from hvd_keras.compression import (
    Compression,
    Compressor,
    reduce_compressed,
    wire_format_of,
)
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import ReduceOp, Sum
from hvd_keras.torch._call import (
    LINEAR,
    Call,
    Handle,
    Reduction,
    begin,
    checked_group,
    reduction,
    refuse_gradient,
    run,
)
from hvd_keras.torch._spread import spread


@uncompiled
@refuses
def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: type[Compressor] | Compressor = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As `hvd.grouped_allreduce`, for torch tensors.

    Example, on 2 ranks:

    >>> tensors = [torch.ones(2), torch.tensor(3)]
    >>> hvd_keras.torch.grouped_allreduce(tensors, hvd.Sum)
    [tensor([2., 2.]), tensor(6)]
    """
    call = _checked(tensors, name, process_set)
    how = reduction(
        op, prescale_factor, postscale_factor, wire_format_of(compression)
    )
    return reduce_compressed(
        compression, tensors, lambda wires: _Reduced.apply(call, how, *wires)
    )


class _Reduced(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: Call, how: Reduction, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.call, ctx.how = call, how
        results = run("allreduce", tensors, call, how=how)
        # Every rank must pass the same list to the gradient's collective. So
        # it depends on dtypes alone, not on what this rank's loss uses.
        ctx.members = [
            i for i, each in enumerate(tensors) if each.is_floating_point()
        ]
        ctx.mark_non_differentiable(
            *(each for each in results if not each.is_floating_point())
        )
        if how.op not in LINEAR:
            ctx.save_for_backward(*tensors)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *upstreams: torch.Tensor) -> Any:
        call, how = ctx.call.part("gradient"), ctx.how
        refuse_gradient("allreduce", how.op, call)
        ups = [upstreams[i] for i in ctx.members]
        gradients: list[torch.Tensor | None] = [None] * len(upstreams)
        if how.op in LINEAR:
            for i, each in zip(
                ctx.members, _Reduced.apply(call, how, *ups), strict=True
            ):
                gradients[i] = each
            return None, None, *gradients
        totals = _Reduced.apply(call, Reduction(Sum), *ups)
        for i, total in zip(ctx.members, totals, strict=True):
            x = ctx.saved_tensors[i]
            gradients[i] = spread(x, total, how, call.part(str(i)))
        return None, None, *gradients


@uncompiled
def grouped_allreduce_(
    tensors: Sequence[torch.Tensor], op: ReduceOp | None = None, **options: Any
) -> list[torch.Tensor]:
    """As `grouped_allreduce_async_`, and waits; returns `tensors`."""
    handle = grouped_allreduce_async_(tensors, op, **options)
    results: list[torch.Tensor] = handle.wait()
    return results


@uncompiled
def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins a `grouped_allreduce`, without a gradient; see `synchronize`."""
    scales = prescale_factor, postscale_factor
    return begun(tensors, op, scales, name, process_set)


@uncompiled
def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As `grouped_allreduce_async`; the results replace `tensors`."""
    scales = prescale_factor, postscale_factor
    return begun(tensors, op, scales, name, process_set, in_place=True)


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
    call = _checked(tensors, name, process_set)
    how = reduction(op, *scales)
    return begin("allreduce", tensors, call, how=how, **options)


def _checked(
    tensors: Sequence[torch.Tensor], name: str | None, process_set: ProcessSet
) -> Call:
    call = checked_group("allreduce", tensors, name, process_set)
    for tensor in tensors:
        training_signs.note_reduced(tensor.numel())
    return call
