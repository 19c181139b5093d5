"""Compares what the ranks share out; says what differs, and the cure."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

from hvd_keras import basics
from hvd_keras._common import log
from hvd_keras._values import agreement
from hvd_keras.exceptions import MismatchError
from hvd_keras.process_set import ProcessSet

# What the user has called, for messages.
_caller = contextvars.ContextVar("caller", default="shard")

_RULE = (
    "All ranks must shard the same data in the same way: all of it, in the "
    "same order. Received: "
)
_ALL = "Pass all the data on each rank, not a share of them by `hvd.rank()`"
_SHUFFLED = (
    f"{_ALL} or by `dataset.shard`. What shuffles needs a seed: "
    "`dataset.shuffle(buffer_size, seed=1)`; what lists files must sort them."
)
# What gives ranks other values, by the kind of data.
_CURES = {
    "arrays": (
        f"{_ALL}. What is drawn, split or shuffled before needs the same seed "
        "on all ranks, such as `keras.utils.set_random_seed(1)` or "
        "`np.random.default_rng(1)`. Columns and classes must be those of all "
        "rows."
    ),
    "tf.data.Dataset": _SHUFFLED,
    "function": (
        "The function must make the same dataset of an epoch on all ranks. "
        f"{_SHUFFLED}"
    ),
    "loader": (
        f"{_ALL}. What is drawn, split or shuffled before, by `random_split` "
        "or `train_test_split` for example, needs the same seed on all ranks."
    ),
    "PyDataset": f"{_ALL}.",
}


@contextlib.contextmanager
def called_by(name: str) -> Iterator[None]:
    """Compares in the name of what the user has called; all ranks do so."""
    token = _caller.set(name)
    try:
        yield
    finally:
        _caller.reset(token)


def caller() -> str:
    """Returns what the user has called; "shard" for `hvd.shard` itself."""
    return _caller.get()


def check_equal(
    kind: str,
    arguments: dict[str, Any],
    description: list[Any],
    process_set: ProcessSet,
    attributes: dict[str, int],
) -> None:
    """Compares data and arguments of `shard`; all ranks of the set call it.

    Args:
        kind: What the data are, a key of `_CURES`.
        arguments: The other arguments.
        description: ["rows", number] or ["batches", number]; then dtype, shape
            and a checksum of each array; then maybe "parts" with the stages
            that leave rows out, and "shuffle" with its seeds.
        process_set: The ranks.
        attributes: Checksums of what may be the rows of a PyDataset, by name.

    Raises:
        MismatchError: On all ranks: they differ.
    """
    mine = [kind, arguments, description]
    checks = [agreement.differing(mine), _comparing(attributes, process_set)]
    values, _ = agreement.together(_caller.get(), checks, process_set)
    if values is None:
        return
    kinds, all_arguments, lists = zip(
        *(value for value, _ in values), strict=True
    )
    ranks = process_set.ranks or []
    for name in arguments:
        each = [f"{name}={one[name]!r}" for one in all_arguments]
        if len(set(each)) > 1:
            raise MismatchError(
                f"{_RULE}{agreement.by_rank(each, ranks)}. Pass the same "
                f"`{name}` on all ranks."
            )
    if len(set(kinds)) > 1:
        raise MismatchError(
            f"{_RULE}{agreement.by_rank(kinds, ranks)}. {_ALL}."
        )
    index, entries = agreement.first_difference(list(lists))
    raise MismatchError(
        f"{_RULE}{_told(index, entries, ranks)}. {_CURES[kind]}"
    )


def _comparing(
    attributes: dict[str, int], process_set: ProcessSet
) -> agreement.Check:
    """Warns, on the first rank, of attributes that hold other rows on some."""
    of_ranks = yield attributes
    differing = [
        f"`data.{name}`"
        for name in attributes
        if len({theirs.get(name) for theirs in of_ranks}) > 1
    ]
    if differing and basics.rank() == (process_set.ranks or [0])[0]:
        log.mistake(
            "Each rank must give the whole data to `hvd.shard`, which deals "
            "batches out. Of a share of its own, half of the rows or more "
            f"are left out. Received: {', '.join(differing)} of a PyDataset, "
            "with other rows on some ranks."
        )


def _told(index: int, entries: list[Any], ranks: list[int]) -> str:
    """Says how the ranks' entries of a place in the description differ."""
    if not index:
        unit, _ = entries[0]
        counts = [f"{count} {unit}" for _, count in entries]
        return agreement.by_rank(counts, ranks)
    if any(one is not None and one[0] == "parts" for one in entries):
        return agreement.by_rank([one[1] for one in entries], ranks)
    if any(one is not None and one[0] == "shuffle" for one in entries):
        return "`shuffle` without a seed, or with other seeds on some ranks"
    what = f"array {index - 1}"
    forms = [
        "none" if one is None else f"{one[0]} of shape {one[1]}"
        for one in entries
    ]
    if len(set(forms)) > 1:
        return f"{what}: {agreement.by_rank(forms, ranks)}"
    others = [
        rank
        for rank, (*_, checksum) in zip(ranks, entries, strict=True)
        if checksum != entries[0][-1]
    ]
    return (
        f"{what} ({forms[0]}), whose values on {agreement.listed(others)} are "
        f"not those on rank {ranks[0]}"
    )
