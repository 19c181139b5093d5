"""Gathers the rows of host arrays, on all ranks or on one."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_keras import _native
from hvd_keras._values import object_exchange
from hvd_keras.process_set import ProcessSet

Array = np.ndarray[Any, Any]


def gather_rows(
    mine: Array, name: str, root: int | None, process_set: ProcessSet
) -> Array | None:
    """Returns the rows of all ranks, one rank after the other.

    Args:
        mine: Those of this rank, of the same dtype and of the same shape after
            the first dimension on all ranks; texts are of dtype object.
        name: Pairs the call across ranks.
        root: The place in the process set of the rank that gets them; None for
            all. The others get None.
        process_set: The ranks that take part.
    """
    is_asked = root in (None, process_set.rank())
    if mine.dtype == object:
        own = [list(mine.shape), mine.ravel().tolist()]
        parts = [
            np.array(values, object).reshape(shape)
            for shape, values in object_exchange.allgather(
                own, name, process_set
            )
        ]
        return np.concatenate(parts) if is_asked else None
    process_set_id = process_set.process_set_id or 0
    if root is None:
        (rows,) = _native.core().allgather(name, [mine], process_set_id)
        return rows
    splits = [0] * (process_set.size() or 1)
    splits[root] = len(mine)
    rows, _ = _native.core().alltoall(name, mine, splits, process_set_id)
    return rows if is_asked else None
