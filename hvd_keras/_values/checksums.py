"""Compares many values over the ranks by their checksums."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from hvd_keras._values import agreement
from hvd_keras.process_set import ProcessSet, global_process_set


def checksum(array: np.ndarray[Any, Any]) -> int:
    """Returns a number of 32 bits that depends on every bit of the array.

    Two arrays that differ have the same one with a chance of 1 in 4e9.
    """
    data = np.ascontiguousarray(array).reshape(-1)
    return zlib.crc32(data.view(np.uint8).data)


def comparing(
    mine: list[tuple[str, int]] | None,
    process_set: ProcessSet = global_process_set,
) -> agreement.Check:
    """Compares lists of checksums over the ranks.

    Args:
        mine: What each checksum of this rank is of, which may differ by rank,
            and the checksum; None: it knows none yet.
        process_set: The ranks that compare; this rank is one of them.

    Returns:
        None if all ranks have the same lists, or some have none. Otherwise a
        text, the same on all ranks, which names the first value that differs
        and the ranks.
    """
    numbers = None if mine is None else [number for _, number in mine]
    values = yield from agreement.differing(numbers, mine)
    if values is None or any(each is None for each, _ in values):
        return None
    index, entries = agreement.first_difference([each for each, _ in values])
    members = process_set.ranks or []
    label = next(
        detail[index][0]
        for entry, (_, detail) in zip(entries, values, strict=True)
        if entry is not None
    )
    others = [
        rank
        for rank, each in zip(members, entries, strict=True)
        if each != entries[0]
    ]
    return (
        f"{label}, whose values on {agreement.listed(others)} are not those on "
        f"rank {members[0]}"
    )
