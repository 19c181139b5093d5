"""Compares many values over the ranks by their checksums."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np

from hvd_keras._values import agreement
from hvd_keras.process_set import ProcessSet, global_process_set

# Floats whose exponents are 0 in these bits are denormal, or 0.
_EXPONENTS: dict[str, tuple[type[np.unsignedinteger[Any]], int]] = {
    "bfloat16": (np.uint16, 0x7F80),
    "float32": (np.uint32, 0x7F800000),
    "complex64": (np.uint32, 0x7F800000),
    "float64": (np.uint64, 0x7FF0000000000000),
    "complex128": (np.uint64, 0x7FF0000000000000),
}
_CHUNK = 1 << 18  # bytes; some stay in a core's cache


def checksum(array: np.ndarray[Any, Any]) -> int:
    """Returns a number of 32 bits that depends on all values of the array.

    Denormal floats count as 0: some threads of XLA and TensorFlow flush them to
    zero, others do not, so ranks that compute the same may differ by them. Two
    arrays that differ otherwise have the same number with a chance of 1 in 4e9.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    form = _EXPONENTS.get(flat.dtype.name)
    if form is None:
        return zlib.crc32(flat.view(np.uint8).data)
    unsigned, exponent = form
    bits, mask = flat.view(unsigned), unsigned(exponent)
    length, number = _CHUNK // bits.itemsize, 0
    for begin in range(0, bits.size, length):
        chunk = bits[begin : begin + length]
        is_small = (chunk & mask) == 0
        if chunk[is_small].any():
            chunk = np.where(is_small, unsigned(0), chunk)
        number = zlib.crc32(chunk.data, number)
    return number


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
