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
    """Reduces `tensor` over the ranks of a process set; each gets the result.

    Every rank calls this with the same `name`, shape and dtype. Differentiable
    except for `Adasum`. For `Average` and `Sum` the gradient is an allreduce
    with the same `op` and factors. For `Min` and `Max` the ranks that hold the
    extremum share the sum of the upstream gradients equally. For `Product` that
    sum is multiplied by the product of the other ranks' values.

    Args:
        tensor: Tensor of any shape and any floating, integer or bool dtype.
        op: How values combine: `Average` (the default), `Sum`, `Min`, `Max`,
            `Product` or, for floating dtypes, `Adasum`.
        name: Pairs this call across ranks. Defaults to a count of the nameless
            calls.
        prescale_factor: Multiplies the tensor before the reduction.
        postscale_factor: Multiplies the result.
        compression: `Compression.none`, `fp16`, `bf16` or a `Compressor`.
        process_set: The ranks that take part. Defaults to all.

    Returns:
        Tensor of the shape, dtype and device of `tensor`, equal on every rank.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on a rank.
        MismatchError: Ranks disagree on shape, dtype, `op` or a factor.
        PeerLostError: A rank left before all had answered.
        StalledError: A rank did not come in time.

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
