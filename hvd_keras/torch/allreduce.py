"""Allreduce: every rank gets the reduction of the ranks' tensors."""

from __future__ import annotations

import torch

from hvd_keras.compression import Compression, Compressor
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import ReduceOp
from hvd_keras.torch.grouped_allreduce import grouped_allreduce


@torch.compiler.disable
def allreduce(
    tensor: torch.Tensor,
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: type[Compressor] = Compression.none,
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
