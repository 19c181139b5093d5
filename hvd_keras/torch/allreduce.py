"""Allreduce: every rank gets the reduction of the ranks' tensors."""

from __future__ import annotations

from typing import Any

import torch

from hvd_keras._common.uncompiled import uncompiled
from hvd_keras.compression import Compression, Compressor
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import ReduceOp
from hvd_keras.torch._call import Handle, first
from hvd_keras.torch.grouped_allreduce import begun, grouped_allreduce


@uncompiled
def allreduce(
    tensor: torch.Tensor,
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: type[Compressor] | Compressor = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As `hvd.allreduce`, for torch tensors.

    The result is on the device of `tensor`.

    Example, on 2 ranks:

    >>> hvd_keras.torch.allreduce(torch.tensor([1.0, 2.0]) * hvd.rank())
    tensor([0.5000, 1.0000])
    """
    (result,) = grouped_allreduce(
        [tensor],
        op,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
        process_set=process_set,
    )
    return result


@uncompiled
def allreduce_(
    tensor: torch.Tensor, op: ReduceOp | None = None, **options: Any
) -> torch.Tensor:
    """As `allreduce_async_`, and waits; returns `tensor`."""
    result: torch.Tensor = allreduce_async_(tensor, op, **options).wait()
    return result


@uncompiled
def allreduce_async(
    tensor: torch.Tensor,
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins an `allreduce`, without a gradient; see `synchronize`.

    Example, on 2 ranks:

    >>> handle = hvd_keras.torch.allreduce_async(torch.ones(2), hvd.Sum)
    >>> hvd_keras.torch.synchronize(handle)
    tensor([2., 2.])
    """
    scales = prescale_factor, postscale_factor
    return begun([tensor], op, scales, name, process_set, then=first)


@uncompiled
def allreduce_async_(
    tensor: torch.Tensor,
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As `allreduce_async`; the result replaces `tensor`."""
    scales = prescale_factor, postscale_factor
    return begun(
        [tensor], op, scales, name, process_set, in_place=True, then=first
    )
