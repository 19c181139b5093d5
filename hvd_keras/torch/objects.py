"""Sends Python objects from rank to rank; they may hold tensors."""

from __future__ import annotations

from typing import Any

from hvd_keras._common.uncompiled import uncompiled
from hvd_keras._values import object_exchange
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.torch._packing import pack, unpack


@uncompiled
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """As `hvd.broadcast_object`; tensors of torch arrive as such, on the CPU.

    Example:

    >>> state = {"epoch": 3, "order": torch.tensor([2, 0, 1])}
    >>> hvd_keras.torch.broadcast_object(state)
    {'epoch': 3, 'order': tensor([2, 0, 1])}
    """
    packed = object_exchange.broadcast(
        pack(obj), root_rank, name or "broadcast_object", process_set
    )
    return unpack(packed)


@uncompiled
def allgather_object(
    obj: Any,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """As `hvd.allgather_object`; tensors of torch arrive as such, on the CPU.

    Example, on 2 ranks:

    >>> hvd_keras.torch.allgather_object({"loss": torch.tensor(0.5)})
    [{'loss': tensor(0.5000)}, {'loss': tensor(0.5000)}]
    """
    packed = object_exchange.allgather(
        pack(obj), name or "allgather_object", process_set
    )
    return [unpack(each) for each in packed]
