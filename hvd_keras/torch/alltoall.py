"""Alltoall: every rank sends a part of its rows to each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd_keras import _native
from hvd_keras._values import refusals
from hvd_keras._values.refusals import refuses
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.torch._call import (
    Call,
    check_has_rows,
    checked_call,
    to_arrays,
)
from hvd_keras.torch._memory import as_tensor


@torch.compiler.disable
@refuses
def alltoall(
    tensor: torch.Tensor,
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, list[int]]:
    """As `hvd.alltoall`, for torch tensors.

    With `splits`, the second of the tuple is a list.

    Example, on 2 ranks:

    >>> rows = torch.arange(2) + 10 * hvd.rank()
    >>> hvd_keras.torch.alltoall(rows)  # on rank 1
    tensor([ 1, 11])
    """
    call = checked_call("alltoall", [tensor], name, process_set)
    check_has_rows("alltoall", tensor, call)
    size, num_rows = call.size, len(tensor)
    counts = [num_rows // size] * size
    if splits is not None:
        counts = [int(count) for count in splits]
    if len(counts) != size or sum(counts) != num_rows or min(counts) < 0:
        raise InvalidArgumentError(
            f"`splits` must be {size} numbers >= 0 whose sum is the number of "
            f"rows, or None if that is a multiple of {size}. Received: "
            f"splits={splits!r}, {num_rows} rows (alltoall {call.name!r})."
        )
    received: list[int] = []
    result: torch.Tensor = _Exchanged.apply(call, counts, received, tensor)
    return result if splits is None else (result, received)


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        call: Call,
        splits: list[int],
        received: list[int],
        tensor: torch.Tensor,
    ) -> torch.Tensor:
        (array,) = to_arrays("alltoall", [tensor], call)
        refusals.submit()
        result, counts = _native.core().alltoall(
            call.name, array, splits, call.set_id
        )
        received.extend(counts)
        ctx.call, ctx.received = call, list(counts)
        return as_tensor(result).to(tensor.device)

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        call = ctx.call.part("gradient")
        sent_back = _Exchanged.apply(call, ctx.received, [], upstream)
        return None, None, None, sent_back
