"""Compares what a tape differentiates for over the ranks, in the first step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hvd_keras import _backends
from hvd_keras._backends.options import path_of
from hvd_keras._gradients.start_check import CURE, unequal_start
from hvd_keras._job import membership, state
from hvd_keras._keras.names import identity_of
from hvd_keras._values import first_values
from hvd_keras._values.first_values import Value
from hvd_keras.process_set import ProcessSet

# The attribute of a variable in which this module notes, with the generation,
# what was found.
_NOTE = "_hvd_first_values"
_EQUAL, _UNKNOWN, _APART = "equal", "unknown", "apart"


def compare(
    sources: Iterable[Any], local_ids: frozenset[int], process_set: ProcessSet
) -> None:
    """Compares variables that no tape has met, and that all ranks train.

    They may differ in the first step, because a program for Horovod broadcasts
    after it. In eager code they may not in the second. In a graph, Python sees
    no second one: the user is told while it runs, and at its end.

    Args:
        sources: What a tape differentiates for; as many on all ranks.
        local_ids: `identity_of` variables that this rank trains alone.
        process_set: The ranks that train together.

    Raises:
        MismatchError: They differ in the second step; on all ranks.
    """
    size = process_set.size()
    # `elastic.State` broadcasts, and ranks trace at other times there.
    if not process_set.included() or size == 1 or membership.is_elastic():
        return
    retried = (_UNKNOWN, _APART) if tf.executing_eagerly() else (_UNKNOWN,)
    notes = [
        (variable, _note_on(variable))
        for variable in sources
        if isinstance(getattr(variable, "_value", variable), tf.Variable)
        and identity_of(variable) not in local_ids
    ]
    due = [(v, note) for v, note in notes if note is None or note in retried]
    if not due:
        return
    backend = _backends.current()
    found = first_values.compare(
        "DistributedGradientTape/first_values",
        [Value.of(repr(path_of(v)), backend.peek(v)) for v, _ in due],
        process_set,
    )
    if found.difference is not None and _APART in {note for _, note in due}:
        raise unequal_start(found.difference)
    if found.difference is not None:
        first_values.note_apart(found, CURE, process_set)
    for variable, note in due:
        result = _APART if found.difference is not None else _EQUAL
        if not found.are_known and note is None:
            result = _UNKNOWN
        setattr(variable, _NOTE, (state.generation(), result))


def _note_on(variable: Any) -> str | None:
    generation, note = getattr(variable, _NOTE, (None, None))
    return note if generation == state.generation() else None
