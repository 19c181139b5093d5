"""Alltoall: every rank sends a part of its rows to each rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from hvd_keras._common.uncompiled import uncompiled
from hvd_keras._values.refusals import refuses
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.torch._call import (
    Call,
    Handle,
    begin,
    check_have_rows,
    checked_call,
)


@uncompiled
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
    call, counts = _checked(tensor, splits, name, process_set)
    received: list[int] = []
    result: torch.Tensor = _Exchanged.apply(call, counts, received, tensor)
    return result if splits is None else (result, received)


@uncompiled
@refuses
def alltoall_async(
    tensor: torch.Tensor,
    splits: Sequence[int] | None = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins an `alltoall`, without a gradient; see `synchronize`."""
    call, counts = _checked(tensor, splits, name, process_set)
    return _begun(tensor, call, counts, with_counts=splits is not None)


def _checked(
    tensor: torch.Tensor,
    splits: Sequence[int] | None,
    name: str | None,
    process_set: ProcessSet,
) -> tuple[Call, list[int]]:
    """Returns the call, and the rows for each rank."""
    call = checked_call("alltoall", [tensor], name, process_set)
    check_have_rows("alltoall", [tensor], call)
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
    return call, counts


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        call: Call,
        splits: list[int],
        received: list[int],
        tensor: torch.Tensor,
    ) -> torch.Tensor:
        result, counts = _begun(tensor, call, splits).wait()
        received.extend(counts)
        ctx.call, ctx.received = call, counts
        exchanged: torch.Tensor = result
        return exchanged

    @staticmethod
    def backward(ctx: Any, upstream: torch.Tensor) -> Any:
        call = ctx.call.part("gradient")
        sent_back = _Exchanged.apply(call, ctx.received, [], upstream)
        return None, None, None, sent_back


def _begun(
    tensor: torch.Tensor,
    call: Call,
    splits: list[int],
    with_counts: bool = True,
) -> Handle:
    """Begins the call; its result is the rows, and how many from each rank."""

    def then(rows: list[torch.Tensor]) -> Any:
        return (rows[0], handle.received) if with_counts else rows[0]

    handle = begin("alltoall", [tensor], call, splits=splits, then=then)
    return handle
