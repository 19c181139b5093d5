"""Saves a model in other ways: later, not at all, with other values.

| Private name | Used to |
|---|---|
| `saving_lib.get_attr_skipset` | make what it keeps for a thread beforehand |
| `global_state.set_global_attribute` | keep it: Keras 3.15 seeks another name |
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras

from hvd_keras._keras.lookup import private_module, require

# All kinds of objects that Keras saves.
_KINDS = (
    "Operation",
    "Layer",
    "Functional",
    "Sequential",
    "Metric",
    "Optimizer",
    "Loss",
    "Cross",
    "Feature",
)


@contextlib.contextmanager
def saving_by(
    model: Any, stand_in: Callable[[Callable[..., None]], Callable[..., None]]
) -> Iterator[None]:
    """Lets others stand in for the methods of a model that save it.

    Args:
        model: The model.
        stand_in: Gets `model.save`, then `model.save_weights`; returns what is
            called in its place.
    """
    own = dict(vars(model))
    names = ("save", "save_weights")
    # An attribute of the instance hides the method of the class.
    vars(model).update({n: stand_in(getattr(model, n)) for n in names})
    try:
        yield
    finally:
        for name in names:
            del vars(model)[name]
            if name in own:
                vars(model)[name] = own[name]


@contextlib.contextmanager
def with_values(values: list[tuple[Any, Any]]) -> Iterator[None]:
    """Gives variables other values in this thread, and in no other.

    Args:
        values: Variables of Keras, each with its value as an array.
    """
    library = private_module("saving.saving_lib")
    skipset = require(library, "get_attr_skipset", ["obj_type"])
    keep = private_module("backend.common.global_state").set_global_attribute
    for kind in _KINDS:
        # It makes objects with variables, which the scope below forbids.
        with contextlib.suppress(Exception):
            keep(f"saving_attr_skiplist_{kind}", skipset(kind))
    with keras.StatelessScope(state_mapping=values):
        yield
