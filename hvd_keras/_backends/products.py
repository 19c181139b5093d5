"""Knows a product of rows by rows by its shape."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def is_of_rows(shape: Sequence[Any], contracted: Any, rows: int | None) -> bool:
    """Whether a product has the shape of rows by rows.

    Args:
        shape: That of the result.
        contracted: The size that the product sums over.
        rows: Rows of a batch; None: not known while the step is traced, nor
            are the sizes that depend on it.
    """
    if len(shape) != 2 or contracted is None or contracted == rows:
        return False
    first, second = shape
    if rows is None:
        return first is None and second is None
    # There may be several views of each row.
    return first == second and first is not None and first % rows == 0
