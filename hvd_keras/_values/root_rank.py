"""The check of `root_rank` that all broadcasts share."""

from __future__ import annotations

import operator
from typing import Any

from hvd_keras import _native
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet


def checked_root_rank(
    root_rank: Any, process_set: ProcessSet, what: str
) -> int:
    """Returns `root_rank` as an int, a global rank and one of the set.

    Args:
        root_rank: An integer of Python or numpy.
        process_set: The ranks that take part.
        what: Words on the call, for the end of the message.

    Raises:
        InvalidArgumentError: It is something else.
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
