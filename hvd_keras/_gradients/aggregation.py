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
from hvd_keras.exceptions import InvalidArgumentError

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
    def is_mean(self) -> bool:
        """Whether the ranks are to have its mean."""
        dtype = self.variable.dtype
        is_float = bool(keras.backend.is_float_dtype(dtype))
        return self.how == "mean" or (self.how is None and is_float)

    @property
    def label(self) -> str:
        return (
            f"{path_of(self.variable)!r} of layer {self.layer.name!r} "
            f"({type(self.layer).__name__})"
        )


def set_aggregation(
    variable_or_layer: Any,
    aggregation: str | Merge,
) -> None:
    """Says what a variable is that steps change without a gradient.

    Such variables are counts, centres, queues, running sums. Each rank changes
    them by its own rows. `BroadcastGlobalVariablesCallback` makes them equal
    again at the end of each epoch, before validation. It knows what those of
    Keras's layers are. It follows `add_weight(..., aggregation=)` of others;
    this function is for code that you cannot change, and comes first. Of what
    is left it warns once, by name.

    - `"mean"`: the mean over the ranks, as for `BatchNormalization`.
    - `"sum"`: what all ranks have added since they were equal the last time.
    - `"only_first_replica"`: what rank 0 has.
    - `"own"`: each rank keeps its own. It is neither broadcast nor compared.
    - A function, for a layer whose states belong together. It gets the states
      when they were equal the last time, and a list of the states of each rank:
      arrays in the order of `layer.non_trainable_weights`. It returns the new
      states, and runs on all ranks.

    During an epoch the ranks go apart. If a step depends on such a state, so
    that this matters, reduce it in the layer, by `hvd.allreduce`.

    All ranks say the same, before `fit`. It holds for this object, not for
    copies or in files.

    Args:
        variable_or_layer: A Keras variable that is not trained, or a layer:
            then all of this kind in it, also if it is built later.
        aggregation: See above.

    Raises:
        InvalidArgumentError: `aggregation` is none of these, or the first
            argument is something else.

    Example:

    >>> counter = keras.Variable(0, trainable=False)
    >>> hvd.set_aggregation(counter, "sum")
    """
    if aggregation not in WORDS and not callable(aggregation):
        raise InvalidArgumentError(
            f"`aggregation` must be one of {', '.join(WORDS)}, or a "
            f"function. Received: aggregation={aggregation!r}."
        )
    is_layer = isinstance(variable_or_layer, keras.layers.Layer)
    if not is_layer and not hasattr(variable_or_layer, "assign"):
        raise InvalidArgumentError(
            "`variable_or_layer` must be a variable or a layer. Received: "
            f"{type(variable_or_layer).__name__}."
        )
    if not is_layer and callable(aggregation):
        raise InvalidArgumentError(
            "A function gets all states of a layer. Received: a function for "
            f"the variable {path_of(variable_or_layer)!r}."
        )
    if not is_layer and variable_or_layer.trainable:
        raise InvalidArgumentError(
            "`aggregation` is of what is not trained; gradients are reduced. "
            f"Received: {path_of(variable_or_layer)!r}, which is trainable. "
            "Make it with `trainable=False`; or pass it to "
            "`register_local_var` of the optimizer, for weights that each rank "
            "trains alone."
        )
    # Keras tracks what `__setattr__` sets.
    vars(variable_or_layer)[_ATTRIBUTE] = aggregation


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
