"""Reducescatter: every rank gets a part of the reduction."""

from __future__ import annotations

import torch

from hvd_keras._common.uncompiled import uncompiled
from hvd_keras.compression import Compression, Compressor
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import ReduceOp
from hvd_keras.torch._call import Handle, first
from hvd_keras.torch.grouped_reducescatter import begun, grouped_reducescatter


@uncompiled
def reducescatter(
    tensor: torch.Tensor,
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: type[Compressor] | Compressor = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As `hvd.reducescatter`, for torch tensors.

    Example, on 2 ranks:

    >>> hvd_keras.torch.reducescatter(torch.arange(4), hvd.Sum)  # on rank 1
    tensor([4, 6])
    """
    (result,) = grouped_reducescatter(
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
def reducescatter_async(
    tensor: torch.Tensor,
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins a `reducescatter`, without a gradient; see `synchronize`."""
    scales = prescale_factor, postscale_factor
    return begun([tensor], op, scales, name, process_set, then=first)
