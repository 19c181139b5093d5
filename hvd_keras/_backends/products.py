"""Knows products and comparisons of rows with rows by their shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_MOST_VIEWS = 4  # of each row


def rows_of(shapes: Iterable[Sequence[int | None]]) -> set[int | None]:
    """Returns the numbers of rows that a step may compare.

    A batch of several parts, such as rows with and without labels, may be
    compared as a whole.

    Args:
        shapes: Those of the tensors of a batch.
    """
    rows = {shape[0] for shape in shapes if len(shape)}
    if None not in rows:
        rows.add(sum(each or 0 for each in rows))
    return rows - {0}


def are_paired(
    first: Sequence[int | None],
    second: Sequence[int | None],
    rows: set[int | None],
) -> bool:
    """Whether shapes broadcast to rows by rows: [n, 1, ...] and [1, n, ...].

    Args:
        first: The shape of an operand.
        second: That of the other one.
        rows: From `rows_of`.
    """
    rank = max(len(first), len(second), 2)
    ones: tuple[int | None, ...] = (1,) * rank
    one, other = ((*ones[len(s) :], *s) for s in (first, second))
    return any(
        down[0] == across[1]
        and down[0] != 1
        and down[0] in rows
        and down[1] == across[0] == 1
        for down, across in ((one, other), (other, one))
    )


def is_of_rows(
    shape: Sequence[Any], contracted: Any, rows: set[int | None]
) -> bool:
    """Whether a product has the shape of rows by rows, or adds up all of them.

    Args:
        shape: That of the result.
        contracted: The size that the product sums over.
        rows: From `rows_of`. None: not known while the step is traced, nor are
            the sizes that depend on it.
    """
    if all(size == 1 for size in shape):
        return (None in rows and contracted is None) or any(
            contracted and each and each < contracted and contracted % each == 0
            for each in rows
        )
    if len(shape) != 2 or contracted is None or contracted in rows:
        return False
    first, second = shape
    if first is None or second is None:
        return first is second and None in rows
    return first == second and any(
        each is not None and first % each == 0 and first <= _MOST_VIEWS * each
        for each in rows
    )
