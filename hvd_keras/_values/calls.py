"""What collectives on the arrays of JAX and torch have in common."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import Any

from hvd_keras import _native
from hvd_keras._job import state
from hvd_keras._values import refusals
from hvd_keras._values.members import members_of
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Average, ReduceOp

# Count the nameless calls, by kind and place, process set, generation of the
# job and calls of `join` that have ended. A rank counts only calls of the sets
# it is in. A generation starts from 0 everywhere.
_counters: dict[tuple[str, int, int, int], Iterator[int]] = (
    collections.defaultdict(itertools.count)
)


def counted_name(where: str, process_set_id: int) -> str:
    """Returns the name of a call that the user gave none.

    After a `join` calls count anew: before it, ranks may have made different
    numbers of calls.

    Args:
        where: The first part of the name. Calls of one kind that ranks may make
            by different ways, as `barrier`, have one.
        process_set_id: The set whose ranks make the call.
    """
    joins = _native.core().num_joins(process_set_id)
    key = where, process_set_id, state.generation(), joins
    if joins:
        where = f"{where}.round_{joins}"
    return f"{where}.{next(_counters[key])}"


def checked_name(
    where: str,
    kind: str,
    name: str | None,
    process_set: ProcessSet,
    *,
    is_in_program: bool = False,
) -> str:
    """Returns the name of a call; counts those without one.

    Args:
        where: The first part of the names of nameless calls.
        kind: The collective.
        name: The name that the user gave, if any.
        process_set: The ranks that take part.
        is_in_program: Whether the call is traced into a program.

    Raises:
        InvalidArgumentError: `name` or `process_set` cannot be used.
    """
    if name is not None and not (isinstance(name, str) and name):
        raise InvalidArgumentError(
            f"`name` must be None or a non-empty string. Received: "
            f"name={name!r}."
        )
    members_of(process_set, f"{kind} {name!r}")
    if name is None:
        name = counted_name(where, process_set.process_set_id or 0)
    told = refusals.WHOLE_PROGRAM if is_in_program else name
    refusals.prepare(lambda: (kind, told, process_set))
    return name


def barrier(name: str | None, process_set: ProcessSet) -> None:
    """Waits until all ranks have come.

    Args:
        name: Pairs the call across ranks; nameless ones are counted.
        process_set: The ranks that take part.

    Raises:
        InvalidArgumentError: `name` or `process_set` cannot be used.
    """
    name = checked_name("barrier", "barrier", name, process_set)
    _native.core().barrier(name, process_set.process_set_id or 0)


def join(process_set: ProcessSet, average_over_active: bool) -> int:
    """Waits until all ranks have joined.

    Returns:
        The global rank that joined last.

    Raises:
        InvalidArgumentError: `process_set` cannot be used.
        MismatchError: Ranks disagree on `average_over_active`.
    """
    members_of(process_set, "join")
    set_id = process_set.process_set_id or 0
    return _native.core().join(set_id, bool(average_over_active))


def checked_reduction(
    op: Any, prescale_factor: float, postscale_factor: float
) -> tuple[int, float, float]:
    """Returns the checked arguments of a reduction; `op` None is `Average`.

    Raises:
        InvalidArgumentError: `op` is not a `ReduceOp`.
    """
    op = Average if op is None else op
    if isinstance(op, bool) or op not in tuple(ReduceOp):
        names = ", ".join(known.name for known in ReduceOp)
        raise InvalidArgumentError(
            f"`op` must be one of {names}. Received: op={op!r}."
        )
    return int(op), float(prescale_factor), float(postscale_factor)
