"""Arrays in the memory of torch tensors, and the other way round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import torch

Array = np.ndarray[Any, Any]

# dtypes that NumPy lacks: an integer type of the same size, and the dtype of
# ml_dtypes.
_FOREIGN = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, ml_dtypes.float8_e4m3fn),
    torch.float8_e5m2: (torch.uint8, ml_dtypes.float8_e5m2),
}


def in_memory_of_their_own(tensors: Sequence[Any]) -> list[torch.Tensor]:
    """Returns contiguous tensors in host memory; copies where necessary.

    No two of them share memory. The inputs may: autograd, for example, gives
    all terms of a sum the same gradient.
    """
    seen: set[int] = set()
    members = []
    for tensor in tensors:
        member = tensor.cpu().contiguous()
        address = member.untyped_storage().data_ptr()
        if address in seen:
            member = member.clone()
        seen.add(address)
        members.append(member)
    return members


def as_array(tensor: torch.Tensor) -> Array:
    """Returns an array that shares the memory of a tensor on the host."""
    if tensor.dtype in _FOREIGN:
        bits, dtype = _FOREIGN[tensor.dtype]
        array: Array = tensor.view(bits).numpy()
        return array.view(dtype)
    shared: Array = tensor.numpy()
    return shared


def as_tensor(array: Array) -> torch.Tensor:
    """Returns a tensor with the values of an array, in memory of its own."""
    return in_memory_of(array.copy())


def in_memory_of(array: Array) -> torch.Tensor:
    """Returns a tensor that shares the memory of a writable array."""
    for ours, (bits, dtype) in _FOREIGN.items():
        if array.dtype == dtype:
            values = array.view(str(bits).removeprefix("torch."))
            return torch.from_numpy(values).view(ours)
    return torch.from_numpy(array)
