"""What the state of a layer is on several ranks: a mean, a sum, a rank's own.

States are what steps change without a gradient. Keras's `Variable.aggregation`
says what one is, and so does `hvd.set_aggregation`, which comes first. Of the
layers of Keras it is known; of others, Keras's default says nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._backends.options import path_of
from hvd_keras._keras import models
from hvd_keras._keras.names import identity_of

WORDS = ("mean", "sum", "only_first_replica", "own")

# Returns the states of a layer from those at the last agreement and those of
# each rank now.
Merge = Callable[[list[Any], list[list[Any]]], list[Any]]

_ATTRIBUTE = "_hvd_aggregation"


@dataclasses.dataclass(frozen=True)
class State:
    """A variable that no gradient changes.

    Args:
        variable: The Keras variable.
        layer: The layer that has made it.
        how: One of `WORDS`, or a function for all states of a layer. None if
            nobody knows.
        annotated: The layer that the function belongs to.
    """

    variable: Any
    layer: Any
    how: str | Merge | None
    annotated: Any = None

    @property
    def label(self) -> str:
        return (
            f"{path_of(self.variable)!r} of layer {self.layer.name!r} "
            f"({type(self.layer).__name__})"
        )


def annotate(target: Any, aggregation: str | Merge) -> None:
    """Says what a variable, or each state of a layer, is."""
    vars(target)[_ATTRIBUTE] = aggregation  # Keras tracks what is set


def aggregation_of(variable: Any) -> Any:
    """Returns what a variable is, by itself: "none" if nobody has said so."""
    said = vars(variable).get(_ATTRIBUTE)
    return said or getattr(variable, "aggregation", None) or "none"


def states_of(model: Any) -> list[State]:
    """Returns the states of a model, in an order equal on all ranks."""
    owner: dict[int, Any] = {}
    said: dict[int, tuple[Any, Any]] = {}
    for layer in models.layers_of(model):  # a layer comes before its parts
        how = vars(layer).get(_ATTRIBUTE)
        for variable in layer.weights:
            owner[identity_of(variable)] = layer
            if how is not None:
                said[identity_of(variable)] = (how, layer)
    found = []
    for variable in model.non_trainable_weights:
        layer = owner[identity_of(variable)]
        how, annotated = said.get(identity_of(variable), (None, None))
        if how is None or _ATTRIBUTE in vars(variable):
            how, annotated = _known(variable, layer), None
        found.append(State(variable, layer, how, annotated))
    return found


def own_states_of(model: Any) -> list[Any]:
    """Returns the variables that each rank has for itself."""
    return [each.variable for each in states_of(model) if each.how == "own"]


def keeps_its_own(layer: Any) -> bool:
    """Whether all states of a layer are said to differ by rank."""
    return bool(vars(layer).get(_ATTRIBUTE) == "own")


def _known(variable: Any, layer: Any) -> str | None:
    how: str = aggregation_of(variable)
    if how != "none":
        return how
    is_keras = type(layer).__module__.startswith("keras.")
    if isinstance(layer, keras.layers.BatchNormalization):
        moving = (layer.moving_mean, layer.moving_variance)
        is_keras = is_keras or any(variable is each for each in moving)
    if not is_keras:
        return None
    is_float = keras.backend.is_float_dtype(variable.dtype)
    return "mean" if is_float else "only_first_replica"
