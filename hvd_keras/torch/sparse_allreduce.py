"""Allreduce of sparse tensors: the entries of all ranks, merged."""

from __future__ import annotations

import torch

from hvd_keras._common.uncompiled import uncompiled
from hvd_keras._values.refusals import refuses
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Average, ReduceOp
from hvd_keras.torch._call import (
    LINEAR,
    Handle,
    begin,
    checked_call,
    reduction,
)


@uncompiled
@refuses
def sparse_allreduce_async(
    tensor: torch.Tensor,
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Begins an allreduce of sparse tensors; see `synchronize`.

    The ranks gather the entries of all, so ranks with few of them send little.

    Args:
        tensor: A sparse tensor in COO format, as `torch.nn.Embedding` with
            `sparse=True` has for a gradient. The ranks agree in its shape and
            in the number of its sparse dimensions, not in its entries.
        op: `Average` (also None) or `Sum`.
        name: Pairs this call across ranks. Calls without one pair in order.
        process_set: The ranks that take part. Defaults to all.

    Returns:
        A handle. Its result is a coalesced sparse tensor.

    Raises:
        InvalidArgumentError: The call is wrong on this rank.

    Example, on 2 ranks:

    >>> mine = torch.sparse_coo_tensor([[hvd.rank()]], [1.0], (3,))
    >>> handle = hvd_keras.torch.sparse_allreduce_async(mine, hvd.Sum)
    >>> hvd_keras.torch.synchronize(handle).to_dense()
    tensor([1., 1., 0.])
    """
    call = checked_call("allgather", [tensor], name, process_set)
    how = reduction(op, 1.0, 1.0)
    if tensor.layout != torch.sparse_coo or how.op not in LINEAR:
        raise InvalidArgumentError(
            "`tensor` must be a sparse tensor in COO format, and `op` Average "
            f"or Sum. Received: {tensor.layout}, {ReduceOp(how.op).name} "
            f"({call.name!r})."
        )
    own = tensor.detach().coalesce()
    divisor = call.size if how.op == Average else 1

    def then(parts: list[torch.Tensor]) -> torch.Tensor:
        values, indices = parts
        whole = torch.sparse_coo_tensor(
            indices.t(),
            values / divisor if divisor > 1 else values,
            own.shape,
            device=own.device,
            check_invariants=False,
        )
        return whole.coalesce()

    # Rows of indices, so that both are concatenated along the entries.
    members = [own.values(), own.indices().t()]
    return begin("allgather", members, call, then=then)
