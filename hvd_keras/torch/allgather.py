"""Allgather: every rank gets the rows of all ranks."""

from __future__ import annotations

import torch

from hvd_keras._common.uncompiled import uncompiled
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.torch._call import Handle, first
from hvd_keras.torch.grouped_allgather import begun, grouped_allgather


@uncompiled
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
    (result,) = grouped_allgather([tensor], name=name, process_set=process_set)
    return result


@uncompiled
def allgather_async(
    tensor: torch.Tensor,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins an `allgather`, without a gradient; see `synchronize`."""
    return begun([tensor], name, process_set, then=first)
