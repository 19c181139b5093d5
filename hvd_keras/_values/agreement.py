"""Checks that all ranks hold the same value before they rely on it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_keras import _native
from hvd_keras._values import object_exchange
from hvd_keras._values.object_format import encode
from hvd_keras.process_set import ProcessSet, global_process_set


def disagreement(
    name: str,
    value: Any,
    detail: Any = None,
    *,
    process_set: ProcessSet = global_process_set,
) -> list[tuple[Any, Any]] | None:
    """Compares `value` over the ranks. All ranks call it, outside TensorFlow.

    While the ranks agree, it costs one gather of 32 bytes a rank.

    Args:
        name: Pairs the call across ranks.
        value: The value to compare: anything that `broadcast_object` takes.
        detail: Words for an error message. It may differ by rank, and is sent
            only if the ranks disagree.
        process_set: The ranks that compare; this rank is one of them.

    Returns:
        None if all ranks have the same value. Otherwise the same list on all
        ranks: (value, detail) of each, in the order of the process set.
    """
    if process_set.size() == 1:
        return None
    digest = hashlib.sha256(encode(value)).digest()
    mine = np.frombuffer(digest, np.uint8).reshape(1, -1)
    (digests,) = _native.core().allgather(
        f"{name}/digest", [mine], process_set.process_set_id or 0
    )
    if (digests == digests[0]).all():
        return None
    return object_exchange.allgather(
        (value, detail), f"{name}/values", process_set
    )


def differing_indices(
    name: str, arrays: Sequence[np.ndarray[Any, Any]]
) -> list[int]:
    """Returns the indices of arrays that differ by rank in any bit.

    It costs one gather of 32 bytes for each array and rank.

    Args:
        name: Pairs the call across ranks.
        arrays: Arrays in host memory; the same number on all ranks.
    """
    if global_process_set.size() == 1 or not arrays:
        return []
    mine = np.stack(
        [
            np.frombuffer(hashlib.sha256(array.tobytes()).digest(), np.uint8)
            for array in arrays
        ]
    )
    (digests,) = _native.core().allgather(name, [mine[np.newaxis]])
    differs = (digests != digests[0]).any(axis=(0, 2))
    return [int(index) for index in np.flatnonzero(differs)]


def first_difference(lists: list[list[Any]]) -> tuple[int, list[Any]]:
    """Returns the first index at which lists differ, and each one's entry.

    The entry is None if a list has ended before. If all lists are equal, it
    returns the last index.
    """
    index, here = 0, [None] * len(lists)
    for index in range(max(len(entries) for entries in lists)):
        here = [
            entries[index] if index < len(entries) else None
            for entries in lists
        ]
        if any(entry != here[0] for entry in here):
            break
    return index, here


def by_rank(values: Sequence[str], ranks: Sequence[int]) -> str:
    """Says which ranks have which value: "a on ranks 0, 2; b on rank 1"."""
    groups: dict[str, list[int]] = {}
    for value, rank in zip(values, ranks, strict=True):
        groups.setdefault(value, []).append(rank)
    return "; ".join(
        f"{value} on {listed(having)}" for value, having in groups.items()
    )


def listed(ranks: list[int]) -> str:
    """Names ranks in a text: "rank 1", "ranks 0, 2"."""
    shown = ", ".join(map(str, ranks[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"
