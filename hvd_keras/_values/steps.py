"""Cuts variables into groups that travel together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

Variable = TypeVar("Variable")

# The host memory that one step of a broadcast needs for its group.
_STEP_BYTES = 64 << 20


def in_steps(
    variables: Sequence[Variable], sizes: Sequence[int]
) -> Iterator[list[Variable]]:
    """Yields `variables` in groups of at most `_STEP_BYTES`.

    A variable that is larger gets a group of its own.

    Args:
        variables: The variables, in order.
        sizes: The size of each in bytes.
    """
    group: list[Variable] = []
    num_bytes = 0
    for variable, size in zip(variables, sizes, strict=True):
        if group and num_bytes + size > _STEP_BYTES:
            yield group
            group, num_bytes = [], 0
        group.append(variable)
        num_bytes += size
    if group:
        yield group
