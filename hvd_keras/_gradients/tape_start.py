"""Compares what a tape differentiates for over the ranks, in the first step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hvd_keras import _backends
from hvd_keras._backends.options import path_of
from hvd_keras._gradients.start_check import CURE, unequal_start
from hvd_keras._job import state
from hvd_keras._keras.names import identity_of
from hvd_keras._values import first_values
from hvd_keras._values.first_values import Value
from hvd_keras.process_set import ProcessSet

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
    if not first_values.are_compared(process_set):
        return
    generation = state.generation()
    wanted = {None, _UNKNOWN}
    if tf.executing_eagerly():
        wanted.add(_APART)
    due = []
    for variable in sources:
        known_in, note = getattr(variable, "_hvd_first_values", (None, None))
        note = note if known_in == generation else None
        is_variable = isinstance(
            getattr(variable, "_value", variable), tf.Variable
        )
        if note in wanted and is_variable:
            due.append((variable, note))
    due = [(v, note) for v, note in due if identity_of(v) not in local_ids]
    if not due:
        return
    backend = _backends.current()
    found = first_values.compare(
        "DistributedGradientTape/first_values",
        [Value.of(repr(path_of(v)), backend.peek(v)) for v, _ in due],
        process_set,
    )
    were_apart = _APART in {note for _, note in due}
    if found.difference is not None and were_apart:
        raise unequal_start(found.difference)
    first_values.note(found, CURE, process_set, were_apart=were_apart)
    for variable, note in due:
        result = _APART if found.difference is not None else _EQUAL
        if not found.are_known and note is None:
            result = _UNKNOWN
        variable._hvd_first_values = generation, result
