"""Keeps train functions apart that were traced for different calls.

| Name of Keras | Used to |
|---|---|
| `Trainer._compile_config` | know that a model was compiled anew |
"""

from __future__ import annotations

from typing import Any

_KEPT = "_hvd_train_functions"


class _Functions:
    """The train functions of a model, by what they were traced for.

    None is the key of those for steps outside of `fit`.
    """

    def __init__(self, compiled: Any) -> None:
        self.compiled = compiled
        self.key: Any = None
        self.by_key: dict[Any, Any] = {}


def switch(model: Any, key: Any) -> None:
    """Gives a model the train function for `key`; Keras makes it if need be."""
    compiled = getattr(model, "_compile_config", None)
    kept = vars(model).get(_KEPT)
    if kept is None or kept.compiled is not compiled:
        kept = _Functions(compiled)
        vars(model)[_KEPT] = kept
    function = model.train_function
    while hasattr(function, "train_function"):  # a StepHook
        function = function.train_function
    if kept.key is None and function is not kept.by_key.get(None):
        kept.by_key.clear()  # somebody else has made a new one
    kept.by_key[kept.key] = function
    if key != kept.key:
        kept.key = key
        model.train_function = kept.by_key.get(key)


def forget(model: Any) -> None:
    """Drops what was traced for other calls: the model has changed."""
    kept = vars(model).get(_KEPT)
    if kept is not None:
        kept.by_key.clear()


def note(model: Any, key: Any) -> None:
    """Notes that the model's train function was made anew, for `key`."""
    kept = vars(model).get(_KEPT)
    if kept is not None:
        kept.key = key
