"""Makes the states of layers equal at the ends of epochs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from hvd_keras import _backends, _native, basics, objects
from hvd_keras._gradients import aggregation, model_state
from hvd_keras._gradients.aggregation import State
from hvd_keras._keras import advice
from hvd_keras._keras import names as private
from hvd_keras._values import agreement, checksums
from hvd_keras._values.agreement import Check, together
from hvd_keras._values.object_format import encode
from hvd_keras.reduce_op import Sum
from hvd_keras.variables import average_alike, broadcast_variables

Array = np.ndarray[Any, Any]

_NAME = "BroadcastGlobalVariablesCallback"


class States:
    """Agrees on states, and tells of those of which it cannot know how.

    All ranks call all methods.
    """

    def __init__(self) -> None:
        # The values when the ranks agreed, of what depends on them.
        self._agreed: dict[int, Array] = {}

    def on_begin(self, model: keras.Model) -> Check:
        """Call this, and run the check, when all have begun with one model."""
        self._note(aggregation.states_of(model))
        return _comparing_untracked(model, _untracked(model))

    def on_epoch_begin(self, model: keras.Model, local: list[Any]) -> None:
        """Call this before the steps of an epoch."""
        self._note(_shared_states(model, local))

    def on_epoch_end(self, model: keras.Model, local: list[Any]) -> None:
        """Makes states equal; call this after the steps of an epoch."""
        if basics.size() == 1:
            return
        states = _shared_states(model, local)
        values = [_value_of(each) for each in states]
        untracked = _untracked(model)
        differing = agreement.differing_indices(
            f"{_NAME}/states", [*values, np.frombuffer(encode(untracked), "u1")]
        )
        if len(states) in differing:
            check = _comparing_untracked(model, untracked)
            together(f"{_NAME}/untracked", [check])
        of_ranks = [
            (states[index], values[index])
            for index in differing
            if index < len(states)
        ]
        unknown = [each.label for each, _ in of_ranks if each.how is None]
        if basics.rank() == 0:
            advice.tell_of_unknown_states(model, unknown)
        # Of the others, equal states may have to be added up.
        self._merge(states)
        self._add_up(
            [
                pair
                for pair in zip(states, values, strict=True)
                if pair[0].how == "sum"
            ]
        )
        means = [each.variable for each, _ in of_ranks if each.is_mean]
        average_alike(means, f"{_NAME}/statistics")
        firsts = [each for each, _ in of_ranks if _is_of_first(each)]
        if firsts:
            broadcast_variables([each.variable for each in firsts])
        self._note(states)

    def _note(self, states: Iterable[State]) -> None:
        self._agreed = {
            private.identity_of(each.variable): np.array(_value_of(each))
            for each in states
            if each.how == "sum" or callable(each.how)
        }

    def _add_up(self, sums: list[tuple[State, Array]]) -> None:
        if not sums:
            return
        bases = [
            self._agreed.get(private.identity_of(each.variable), value)
            for each, value in sums
        ]
        added = [
            np.asarray(_wide(value) - _wide(base))
            for (_, value), base in zip(sums, bases, strict=True)
        ]
        totals = _native.core().allreduce(f"{_NAME}/sums", added, int(Sum))
        for (each, _), base, total in zip(sums, bases, totals, strict=True):
            _assign(each, _wide(base) + np.asarray(total))

    def _merge(self, states: list[State]) -> None:
        groups: dict[int, list[State]] = {}
        for each in states:
            if callable(each.how):
                groups.setdefault(id(each.annotated), []).append(each)
        for group in groups.values():
            now = [_value_of(each) for each in group]
            of_ranks = objects.allgather_object(now, name=f"{_NAME}/merged")
            before = [
                self._agreed.get(private.identity_of(each.variable), value)
                for each, value in zip(group, of_ranks[0], strict=True)
            ]
            merge: Any = group[0].how
            for each, value in zip(group, merge(before, of_ranks), strict=True):
                _assign(each, np.asarray(value))


def _comparing_untracked(
    model: keras.Model, untracked: list[tuple[str, int]]
) -> Check:
    difference = yield from checksums.comparing(untracked)
    if difference is not None and basics.rank() == 0:
        advice.tell_of_untracked_state(model, difference)


def _shared_states(model: keras.Model, local: list[Any]) -> list[State]:
    ids = frozenset(map(private.identity_of, local))
    return [
        each
        for each in aggregation.states_of(model)
        if private.identity_of(each.variable) not in ids
    ]


def _untracked(model: keras.Model) -> list[tuple[str, int]]:
    """Returns labels and checksums of what Keras does not know."""
    return [
        (label, checksums.checksum(value))
        for label, value in model_state.untracked(model)
    ]


def _value_of(state: State) -> Array:
    return np.asarray(_backends.current().read(state.variable))


def _is_float(state: State) -> bool:
    return bool(keras.backend.is_float_dtype(state.variable.dtype))


def _is_of_first(state: State) -> bool:
    return state.how == "only_first_replica" or (
        state.how is None and not _is_float(state)
    )


def _wide(value: Array) -> Array:
    """Returns a value in a dtype that has room for sums."""
    is_integer = np.issubdtype(value.dtype, np.integer) or value.dtype == bool
    return value.astype(np.int64 if is_integer else np.float64)


def _assign(state: State, value: Array) -> None:
    if not _is_float(state):
        value = np.rint(value).astype(np.int64)
    state.variable.assign(value)
