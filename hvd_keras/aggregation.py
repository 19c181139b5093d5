"""Says what the states of layers are on several ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._backends.options import path_of
from hvd_keras._gradients import aggregation as states
from hvd_keras.exceptions import InvalidArgumentError


def set_aggregation(
    variable_or_layer: Any,
    aggregation: str | Callable[[list[Any], list[list[Any]]], list[Any]],
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
    if aggregation not in states.WORDS and not callable(aggregation):
        raise InvalidArgumentError(
            f"`aggregation` must be one of {', '.join(states.WORDS)}, or a "
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
    states.annotate(variable_or_layer, aggregation)
