"""Variables in groups that travel together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

Variable = TypeVar("Variable")

# Host memory that one step of a broadcast takes beside the variables.
_STEP_BYTES = 64 << 20


def in_steps(
    variables: Sequence[Variable], sizes: Sequence[int]
) -> Iterator[list[Variable]]:
    """Yields them in groups of so many bytes that travel together.

    Args:
        variables: What is grouped.
        sizes: The bytes of each.
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
