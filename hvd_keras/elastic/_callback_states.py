"""What callbacks remember: their attributes that hold plain values."""

from __future__ import annotations

import copy
from typing import Any

import keras
import numpy as np

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# Keras sets them, or they say nothing about the training.
_NOT_STATE = frozenset({"params", "_model", "on_train_begin"})
# Their attributes are about this process and this membership.
_OUR_MEASUREMENTS = frozenset(
    {"CommunicationLogger", "Elastic", "ThroughputCallback"}
)

State = dict[str, dict[str, Any]]


class CallbackStates:
    """Reads and sets what the callbacks of a rank remember.

    Ranks may have different callbacks. Those of one class are told apart by
    their order.

    Args:
        callbacks: The callbacks of `fit`.
    """

    def __init__(self, callbacks: list[Any]) -> None:
        self._by_key: dict[str, Any] = {}
        counts: dict[str, int] = {}
        for callback in callbacks:
            kind = type(callback)
            if kind.__name__ in _OUR_MEASUREMENTS and is_ours(callback):
                continue
            name = f"{kind.__module__}.{kind.__qualname__}"
            counts[name] = counts.get(name, 0) + 1
            self._by_key[f"{name}#{counts[name]}"] = callback
        self._first: State = {}

    def note_first(self) -> None:
        """Notes what the callbacks remember before the first step."""
        self._first = copy.deepcopy(self.read())

    def read(self) -> State:
        """Returns the plain attributes of each callback; do not change them."""
        return {
            key: {
                name: value
                for name, value in vars(callback).items()
                if name not in _NOT_STATE and _is_plain(value)
            }
            for key, callback in self._by_key.items()
        }

    def changed(self, state: State) -> dict[str, list[str]]:
        """Returns the names of attributes that have changed since the first.

        Others, such as the path of a rank's file, are no business of new ranks.
        """
        return {
            key: [
                name
                for name, value in attributes.items()
                if name not in self._first.get(key, {})
                or not _is_same(value, self._first[key][name])
            ]
            for key, attributes in state.items()
        }

    def restore(
        self, state: State, only: dict[str, list[str]] | None = None
    ) -> None:
        """Sets attributes, except those that now hold something else.

        Args:
            state: What `read` returned, maybe on another rank.
            only: The names of the attributes to set; None: all.
        """
        for key, attributes in state.items():
            callback = self._by_key.get(key)
            if callback is None:
                continue
            own = vars(callback)
            for name, value in attributes.items():
                wanted = only is None or name in only.get(key, [])
                if wanted and _is_plain(own.get(name)):
                    own[name] = copy.deepcopy(value)


def is_ours(callback: Any) -> bool:
    """Whether a callback is one of hvd_keras, or derives from one."""
    return any(
        each.__module__.startswith("hvd_keras.")
        for each in type(callback).__mro__
    )


def append_to_logs(callbacks: list[Any]) -> None:
    """Keeps callbacks from beginning their files anew in a running job."""
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.CSVLogger):
            callback.append = True


def _is_plain(value: Any, depth: int = 4) -> bool:
    if type(value) in _PLAIN or isinstance(value, np.generic):
        return True
    if type(value) is np.ndarray:
        return bool(value.dtype.kind in "biufc")
    if depth == 0:
        return False
    if type(value) in (list, tuple, set, frozenset):
        return all(_is_plain(each, depth - 1) for each in value)
    return type(value) is dict and all(
        _is_plain(key, depth - 1) and _is_plain(each, depth - 1)
        for key, each in value.items()
    )


def _is_same(value: Any, other: Any) -> bool:
    if isinstance(value, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(value, other)
    if type(value) in (list, tuple, dict):
        return type(value) is type(other) and repr(value) == repr(other)
    return bool(value == other)
