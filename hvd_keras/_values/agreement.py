"""Checks that all ranks hold the same value before they rely on it."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np

from hvd_keras._job import membership
from hvd_keras._values import object_exchange
from hvd_keras._values.object_format import encode
from hvd_keras.process_set import ProcessSet, global_process_set

# A check yields what this rank has, and gets that of each rank, in the order of
# the process set. It raises on all ranks, yields again on all, or returns.
Check = Generator[Any, list[Any], Any]


def together(
    name: str,
    checks: Iterable[Check],
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Runs checks that share their exchanges; returns what each returns.

    All ranks call it, outside TensorFlow, with the same checks. The first that
    refuses raises, so the most telling comes first.

    Args:
        name: Pairs the call across ranks.
        checks: The checks.
        process_set: The ranks that compare; this rank is one of them.
    """
    results = dict.fromkeys(checks)
    answers: dict[Check, Any] = dict(results)
    while answers:
        asked = {}
        for check, answer in answers.items():
            try:
                asked[check] = check.send(answer)
            except StopIteration as end:
                results[check] = end.value
        mine, num_ranks = list(asked.values()), process_set.size()
        of_ranks = [mine] * (num_ranks or 1)
        # A rank that waits for the job gets ready as if the others were alike.
        if mine and num_ranks != 1 and not membership.is_waiting():
            of_ranks = object_exchange.allgather(mine, name, process_set)
        columns = map(list, zip(*of_ranks, strict=True))
        answers = dict(zip(asked, columns, strict=True))
    return list(results.values())


def differing(value: Any, detail: Any = None) -> Check:
    """Compares `value` over the ranks.

    While they agree, 32 bytes a rank travel.

    Args:
        value: The value to compare: anything that `broadcast_object` takes.
        detail: Words for an error message. It may differ by rank.

    Returns:
        None if all ranks have the same value. Otherwise the same list on all
        ranks: (value, detail) of each, in the order of the process set.
    """
    digests = yield hashlib.sha256(encode(value)).digest()
    return (yield value, detail) if len(set(digests)) > 1 else None


def differing_indices(
    name: str, arrays: Sequence[np.ndarray[Any, Any]]
) -> list[int]:
    """Returns the indices of arrays that differ by rank in any bit.

    It costs one gather of about 40 bytes for each array and rank.

    Args:
        name: Pairs the call across ranks.
        arrays: Arrays in host memory; the same number on all ranks.
    """
    digests = [hashlib.sha256(array.tobytes()).digest() for array in arrays]
    of_ranks = object_exchange.allgather(digests, name, global_process_set)
    columns = enumerate(zip(*of_ranks, strict=True))
    return [index for index, column in columns if len(set(column)) > 1]


def first_difference(lists: list[list[Any]]) -> tuple[int, list[Any]]:
    """Returns the first index at which lists differ, and each one's entry.

    The entry is None if a list has ended before. If all lists are equal, it
    returns the last index.
    """
    index, here = 0, [None] * len(lists)
    for index in range(max(len(entries) for entries in lists)):
        here = [
            entries[index] if index < len(entries) else None
            for entries in lists
        ]
        if any(entry != here[0] for entry in here):
            break
    return index, here


def by_rank(values: Sequence[str], ranks: Sequence[int]) -> str:
    """Says which ranks have which value: "a on ranks 0, 2; b on rank 1"."""
    groups: dict[str, list[int]] = {}
    for value, rank in zip(values, ranks, strict=True):
        groups.setdefault(value, []).append(rank)
    return "; ".join(
        f"{value} on {listed(having)}" for value, having in groups.items()
    )


def listed(ranks: list[int]) -> str:
    """Names ranks in a text: "rank 1", "ranks 0, 2"."""
    shown = ", ".join(map(str, ranks[:8]))
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {shown}{more}"
