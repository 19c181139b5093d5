"""What tells the rows of arrays from other ones, in any order."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_keras._values import checksums
from hvd_keras._values.arrays_behind import arrays_behind

_MOST_ROWS = 64
_MOST_BYTES = 1 << 22  # of an array; they take a few milliseconds
_OBJECT_BYTES = 1 << 12  # what takes as long to read as a string
_MOST_READ = 1 << 28  # of an array, of which one part in 64 is looked at


# Shapes and dtypes of arrays, a checksum of each that does not depend on the
# order of its rows, and one of some rows.
Sample = tuple[list[tuple[list[int], str]], list[int], list[int]]


def sample_of(arrays: Sequence[Any], data: Any = None) -> Sample | None:
    """Returns it; None if all rows are equal, or nobody can read them.

    Args:
        arrays: Arrays, tensors in host memory, or tables.
        data: Without arrays, what may have some behind it.
    """
    try:
        arrays = arrays or arrays_behind(data)
        rows = [_rows_of(array) for array in arrays]
        # Equal rows, such as zeros, are the same in each share too.
        if all((some == some[:1]).all() for some in rows):
            return None
        return (
            [
                (list(map(int, array.shape)), str(some.dtype))
                for array, some in zip(arrays, rows, strict=True)
            ],
            list(map(_sum_of, arrays, rows)),
            list(map(_checksum, rows)),
        )
    except Exception:
        # Keras takes more kinds, such as sparse tensors. Advice must not end
        # the training.
        return None


def sum_of(array: Any) -> int:
    """Returns a checksum of the rows, in any order; 0 if nobody can read it."""
    try:
        return _sum_of(array, _rows_of(array))
    except Exception:  # such as a sparse tensor
        return 0


def _rows_of(array: Any) -> np.ndarray[Any, Any]:
    """Returns some rows of an array, tensor or table, evenly spread."""
    num_rows = array.shape[0]
    array = getattr(array, "iloc", array)  # of pandas
    first = _as_numpy(array[:1])
    most = min(_MOST_ROWS, max(2, _MOST_BYTES // max(1, first.nbytes)))
    return _as_numpy(array[:: max(1, math.ceil(num_rows / most))])


def _sum_of(array: Any, some: np.ndarray[Any, Any]) -> int:
    """Returns a checksum of all rows, or of a part of each, in any order.

    Args:
        array: The rows.
        some: Some of them. Their checksum stands for the rows where it would
            take too long to read all.
    """
    row_bytes = _OBJECT_BYTES if some.dtype.hasobject else some[:1].nbytes
    if array.shape[0] * row_bytes > _MOST_READ:
        return _checksum(some)
    rows = _as_numpy(array).reshape(array.shape[0], -1)
    if rows.dtype.hasobject:  # strings
        return sum(zlib.crc32(repr(row).encode()) for row in rows.tolist())
    size = rows.dtype.itemsize
    bits = rows.view(f"u{size}" if size in (1, 2, 4, 8) else "u1")
    bits = bits[:, :: math.ceil(bits.nbytes / _MOST_BYTES)]
    return checksums.checksum(bits.sum(axis=0, dtype=np.uint64))


def _as_numpy(rows: Any) -> np.ndarray[Any, Any]:
    if hasattr(rows, "detach"):  # of torch
        rows = rows.detach().cpu()
    return np.asarray(rows)


def _checksum(rows: np.ndarray[Any, Any]) -> int:
    if rows.dtype.hasobject:  # strings; the array holds their addresses
        text = repr(rows.tolist()).encode()
        rows = np.frombuffer(text, np.uint8)
    return checksums.checksum(rows)
