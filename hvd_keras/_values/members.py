"""Checks the arguments `process_set` and `root_rank`."""

from __future__ import annotations

import operator
from typing import Any

from hvd_keras import _native
from hvd_keras._job import state
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet


def members_of(process_set: ProcessSet, what: str) -> list[int]:
    """Returns the ranks of a process set, which must include this rank.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The set is not registered, or this rank is not in
            it.
    """
    rank = state.topology("rank").rank
    ranks = process_set.ranks
    if process_set.process_set_id is None or ranks is None:
        raise InvalidArgumentError(
            f"`process_set` must be registered with `init(process_sets=...)` "
            f"or `add_process_set`. Received: process_set={process_set!r} "
            f"(rank {rank}, {what})."
        )
    if rank not in ranks:
        raise InvalidArgumentError(
            f"This rank must be in process set {process_set.process_set_id} "
            f"(ranks {', '.join(map(str, ranks))}). Received: a call on rank "
            f"{rank} ({what})."
        )
    return ranks


def to_root_rank(root_rank: Any, process_set: ProcessSet, what: str) -> int:
    """Returns `root_rank`; raises like `members_of`, or if it is no member."""
    members_of(process_set, what)
    return checked_root_rank(root_rank, process_set, f" ({what})")


def checked_root_rank(
    root_rank: Any, process_set: ProcessSet, what: str
) -> int:
    """Returns `root_rank` as an int, the global rank of a member of the set.

    Args:
        root_rank: An integer of Python or numpy.
        process_set: The ranks that take part.
        what: Words about the call, for the end of the message.

    Raises:
        InvalidArgumentError: It is not an integer, or not a rank of the set.
    """
    ranks = process_set.ranks
    try:
        index = -1 if isinstance(root_rank, bool) else operator.index(root_rank)
    except TypeError:
        index = -1
    if index >= 0 and (ranks is None or index in ranks):
        return index
    if ranks is None:  # `init()` was not called
        expected, where = "a rank", ""
    else:
        where = f" (rank {_native.core().rank()})"
        expected = f"an integer in [0, {len(ranks)})"
        if process_set.process_set_id != 0:
            expected = (
                f"one of {', '.join(map(str, ranks))}, the ranks of process "
                f"set {process_set.process_set_id}"
            )
    raise InvalidArgumentError(
        f"`root_rank` must be {expected}. Received: "
        f"root_rank={root_rank!r}{where}{what}."
    )
