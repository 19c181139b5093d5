"""Broadcast: every rank gets the tensor of one rank."""

from __future__ import annotations

from typing import Any

import torch

from hvd_keras import basics
from hvd_keras._common.uncompiled import uncompiled
from hvd_keras._values.members import to_root_rank
from hvd_keras._values.refusals import refuses
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Sum
from hvd_keras.torch._call import (
    Call,
    Handle,
    Reduction,
    begin,
    checked_call,
    first,
    run,
)


@uncompiled
@refuses
def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As `hvd.broadcast`, for torch tensors.

    The result is on the device of `tensor`.

    Example, on 2 ranks:

    >>> hvd_keras.torch.broadcast(torch.tensor(hvd.rank() + 5), root_rank=1)
    tensor(6)
    """
    call = checked_call("broadcast", [tensor], name, process_set)
    root = to_root_rank(root_rank, process_set, f"broadcast {call.name!r}")
    result: torch.Tensor = _Sent.apply(call, root, tensor)
    return result


@uncompiled
def broadcast_(
    tensor: torch.Tensor, root_rank: int, **options: Any
) -> torch.Tensor:
    """As `broadcast_async_`, and waits; returns `tensor`."""
    result: torch.Tensor = broadcast_async_(tensor, root_rank, **options).wait()
    return result


@uncompiled
def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins a `broadcast`, without a gradient; see `synchronize`."""
    return _begun(tensor, root_rank, name, process_set, in_place=False)


@uncompiled
def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As `broadcast_async`; the result replaces `tensor`."""
    return _begun(tensor, root_rank, name, process_set, in_place=True)


@refuses
def _begun(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    *,
    in_place: bool,
) -> Handle:
    call = checked_call("broadcast", [tensor], name, process_set)
    root = to_root_rank(root_rank, process_set, f"broadcast {call.name!r}")
    return begin(
        *("broadcast", [tensor], call),
        root_rank=root,
        in_place=in_place,
        then=first,
    )


class _Sent(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, call: Call, root: int, tensor: torch.Tensor
    ) -> torch.Tensor:
        ctx.call, ctx.root = call, root
        (result,) = run("broadcast", [tensor], call, root_rank=root)
        return result

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        call = ctx.call.part("gradient")
        return None, None, _AtRoot.apply(call, ctx.root, upstream)


class _AtRoot(torch.autograd.Function):
    """The root gets the sum of the ranks' tensors, the others zeros."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, root: int, tensor: torch.Tensor
    ) -> torch.Tensor:
        ctx.call, ctx.root = call, root
        (summed,) = run("allreduce", [tensor], call, how=Reduction(Sum))
        is_root = basics.rank() == root
        return summed if is_root else torch.zeros_like(summed)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        call = ctx.call.part("gradient")
        return None, None, _Sent.apply(call, ctx.root, upstream)
