"""Gives all ranks the parameters and the optimizer state of one rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from hvd_keras import basics
from hvd_keras._common import training_signs
from hvd_keras._common.uncompiled import uncompiled
from hvd_keras._values import object_exchange
from hvd_keras._values.members import to_root_rank
from hvd_keras._values.refusals import refuses
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.torch._call import begin, checked_call
from hvd_keras.torch._models import naming
from hvd_keras.torch._packing import pack, unpack


@uncompiled
def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]],
    root_rank: int,
    *,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites tensors on all ranks with those of `root_rank`.

    Call it at the start, or after one rank has loaded a checkpoint.

    Args:
        params: `model.state_dict()`, which has buffers too, or
            `model.named_parameters()`; the same tensors in the same order on
            all ranks.
        root_rank: The rank whose values all get.
        process_set: The ranks that take part. Defaults to all.

    Raises:
        InvalidArgumentError: The call is wrong on this rank.
        MismatchError: The ranks have tensors of other shapes or dtypes.

    Example:

    >>> hvd_keras.torch.broadcast_parameters(model.state_dict(), root_rank=0)
    """
    is_dict = isinstance(params, Mapping)
    pairs = list(params.items() if is_dict else params)  # type: ignore[union-attr]
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InvalidArgumentError(
                "`params` must be a `state_dict()` or pairs of a name and a "
                f"tensor. Received: {type(pair).__name__} in it."
            )
    pairs = [(name, each) for name, each in pairs if each is not None]
    training_signs.has_broadcast_weights = True
    if pairs:
        names, tensors = zip(*pairs, strict=True)
        with naming(names):
            _broadcast(tensors, root_rank, process_set)


@uncompiled
def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    *,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Loads the state of an optimizer of `root_rank` on all ranks.

    Of the ranks only `root_rank` need have taken steps, or have loaded a
    checkpoint.

    Args:
        optimizer: An optimizer of torch, distributed or not.
        root_rank: The rank whose state all get.
        process_set: The ranks that take part. Defaults to all.

    Raises:
        InvalidArgumentError: The call is wrong on this rank.
        TypeError: The state holds what cannot be sent; on all ranks.

    Example:

    >>> hvd_keras.torch.broadcast_optimizer_state(optimizer, root_rank=0)
    """
    is_root = basics.rank() == root_rank
    tensors: list[torch.Tensor] = []
    packed = pack(optimizer.state_dict(), tensors) if is_root else None
    packed = object_exchange.broadcast(
        packed, root_rank, "broadcast_optimizer_state", process_set
    )
    state = None if is_root else unpack(packed, tensors)
    if tensors:
        _broadcast(tensors, root_rank, process_set)
    if state is not None:
        optimizer.load_state_dict(state)


@refuses
def _broadcast(
    tensors: Sequence[torch.Tensor], root_rank: int, process_set: ProcessSet
) -> None:
    call = checked_call("broadcast", tensors, None, process_set)
    root = to_root_rank(root_rank, process_set, f"broadcast {call.name!r}")
    begin("broadcast", tensors, call, root_rank=root, in_place=True).wait()
