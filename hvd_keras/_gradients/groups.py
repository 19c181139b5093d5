"""Cuts a list of gradients into the groups that the user asked for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hvd_keras._backends.options import VariableGroups
from hvd_keras._keras.names import identity_of


def group_indices(
    variables: Sequence[Any], groups: int | VariableGroups
) -> list[list[int]]:
    """Cuts gradients into the groups that the user asked for.

    Args:
        variables: The variable of each gradient, in order of creation.
        groups: A number of groups of about equal length, or lists of variables.
            Variables in no list are reduced one by one.

    Returns:
        The indices of each group, like those of `bucket_indices`.
    """
    order = list(reversed(range(len(variables))))
    if isinstance(groups, int):
        count = max(1, min(groups, len(order)))
        ends = [len(order) * n // count for n in range(count + 1)]
        return [order[a:b] for a, b in itertools.pairwise(ends) if b > a]
    lists: dict[tuple[str, int], list[int]] = {}
    numbers = groups.numbers()
    for index in order:
        number = numbers.get(identity_of(variables[index]))
        key = ("single", index) if number is None else ("group", number)
        lists.setdefault(key, []).append(index)
    return list(lists.values())
