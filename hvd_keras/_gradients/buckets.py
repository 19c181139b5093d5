"""Cuts a list of gradients into buckets, each reduced as one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from hvd_keras._backends.options import VariableGroups
from hvd_keras._job import state
from hvd_keras._keras.names import identity_of

# Large buckets cost least, but nothing travels before the first one is full.
_BYTES_ON_ONE_HOST = 8 << 20
_BYTES_ON_SEVERAL_HOSTS = 2 << 20


def bucket_bytes() -> int:
    """The limit of a bucket in this job."""
    chosen = state.config().bucket_bytes
    if chosen is not None:
        return chosen
    job = state.job()
    if job is not None and job.topology.size > job.topology.local_size:
        return _BYTES_ON_SEVERAL_HOSTS
    return _BYTES_ON_ONE_HOST


def bucket_indices(
    num_bytes: Sequence[int], bucket_bytes: int
) -> list[list[int]]:
    """Cuts gradients into buckets, each reduced as one.

    Buckets go in reverse order of creation, because backpropagation computes
    the gradients of the last layers first. So a bucket is complete, and on its
    way, while the gradients of earlier layers are still being computed.

    Args:
        num_bytes: Size of each gradient, in order of creation.
        bucket_bytes: Limit of a bucket. A gradient that is larger gets a bucket
            of its own.

    Returns:
        The indices of each bucket; every index is in exactly one.
    """
    buckets: list[list[int]] = []
    room = 0
    for index in reversed(range(len(num_bytes))):
        if not buckets or num_bytes[index] > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(index)
        room -= num_bytes[index]
    return buckets


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
