"""Structures of arrays or tensors with equal numbers of rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_NUM_PROBES = 16  # rows that ranks compare
_MOST_SHAPES = 8  # that a text names


def converted(data: Any, convert: Callable[[Any], Any]) -> Any:
    """Returns the structure of `data` with converted arrays.

    Lists become tuples, except lists of numbers or texts: these are one tensor,
    as for tf.data.
    """
    if isinstance(data, list | tuple) and not _is_vector(data):
        return tuple(converted(part, convert) for part in data)
    if isinstance(data, dict):
        return {key: converted(part, convert) for key, part in data.items()}
    if hasattr(data, "columns") and hasattr(data, "dtypes"):
        data = _numbers_of(data)
    return convert(data)


def _numbers_of(frame: Any) -> Any:
    """Returns a table as numbers, also where its columns are of several kinds.

    Raises:
        ValueError: A column has no numbers.
    """
    if np.asarray(frame[:1]).dtype != object:
        return frame
    for column, dtype in zip(frame.columns, frame.dtypes, strict=True):
        if getattr(dtype, "kind", "O") not in "biuf":
            raise ValueError(
                "A table must have columns of numbers. Turn texts and "
                "categories into numbers first, as by `pandas.get_dummies`, or "
                "pass a dict of columns to a model with an input for each. "
                f"Received: column {column!r} of dtype {dtype}."
            )
    return frame.astype("float64")


def has_targets(batch: Any) -> bool:
    """Whether a batch is (x, y) or (x, y, sample_weight), as Keras takes it."""
    return (
        isinstance(batch, list | tuple)
        and len(batch) in (2, 3)
        and not _is_vector(batch)
    )


def check_rows(flat: Sequence[Any]) -> None:
    """Raises ValueError unless all arrays have the same number of rows."""
    shapes = [tuple(array.shape) for array in flat]
    lengths = {shape[0] if shape else None for shape in shapes}
    if len(lengths) != 1 or None in lengths:
        more = len(shapes) - _MOST_SHAPES
        others = f" and {more} more" if more > 0 else ""
        lists = (
            " A list is a structure of arrays: make it one array by "
            "`np.asarray`."
            if more > 0
            else ""
        )
        raise ValueError(
            "`data` must be arrays with the same number of rows, their first "
            f"dimension.{lists} Received: arrays of shapes "
            f"{shapes[:_MOST_SHAPES]}{others}."
        )


def describe(
    flat: Sequence[Any], rows_of: Callable[[Any, Any], Any]
) -> list[Any]:
    """Returns what must be equal on all ranks: types, shapes, some rows.

    Args:
        flat: Arrays or tensors.
        rows_of: Takes one of them and indices; returns these rows as an array.
    """
    num_rows = int(flat[0].shape[0])
    probes = np.linspace(0, num_rows, _NUM_PROBES, endpoint=False, dtype=int)
    probes = np.unique(probes)[:num_rows]
    return [
        [
            array.dtype.name,
            list(array.shape),
            checksum_of(rows_of(array, probes)),
        ]
        for array in flat
    ]


def checksum_of(array: Any) -> int:
    """Returns a number that almost surely differs between arrays."""
    if array.dtype == object:  # texts
        return zlib.crc32(repr(array.tolist()).encode())
    return zlib.crc32(array.tobytes())


def _is_vector(data: Any) -> bool:
    return all(isinstance(part, int | float | str | bytes) for part in data)
