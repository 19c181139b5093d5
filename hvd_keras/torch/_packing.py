"""Takes objects with tensors apart, so that they can travel."""

from __future__ import annotations

import collections
from typing import Any

import torch

from hvd_keras.torch._memory import as_array, as_tensor

# Values are pairs of a tag and what it says. A plain value is tagged too: it
# may look like such a pair.
_VALUE, _TENSOR, _ARRAY, _LIST, _TUPLE, _DICT, _ORDERED = range(7)


def pack(obj: Any, tensors: list[torch.Tensor] | None = None) -> Any:
    """Returns `obj` without tensors, for `unpack`.

    Args:
        obj: An object whose lists, tuples and dicts may hold tensors.
        tensors: Gets the tensors. None: they become arrays in the result.
    """
    if isinstance(obj, torch.Tensor):
        own = obj.detach().cpu().contiguous()
        if tensors is None:
            return _ARRAY, as_array(own)
        tensors.append(own)
        dtype = str(own.dtype).removeprefix("torch.")
        return _TENSOR, dtype, list(own.shape)
    if isinstance(obj, list | tuple):
        tag = _LIST if isinstance(obj, list) else _TUPLE
        return tag, [pack(each, tensors) for each in obj]
    if isinstance(obj, dict):
        is_ordered = isinstance(obj, collections.OrderedDict)
        items = [(key, pack(value, tensors)) for key, value in obj.items()]
        return _ORDERED if is_ordered else _DICT, items
    return _VALUE, obj


def unpack(packed: Any, tensors: list[torch.Tensor] | None = None) -> Any:
    """Returns what was packed.

    Args:
        packed: From `pack`, maybe of another rank.
        tensors: Gets new tensors of the shapes of those that were left out.
    """
    tag, value, *shape = packed
    if tag == _ARRAY:
        return as_tensor(value)
    if tag == _TENSOR:
        made = torch.empty(shape[0], dtype=getattr(torch, value))
        assert tensors is not None
        tensors.append(made)
        return made
    if tag in (_LIST, _TUPLE):
        values = [unpack(each, tensors) for each in value]
        return values if tag == _LIST else tuple(values)
    if tag in (_DICT, _ORDERED):
        items = [(key, unpack(each, tensors)) for key, each in value]
        return dict(items) if tag == _DICT else collections.OrderedDict(items)
    return value
