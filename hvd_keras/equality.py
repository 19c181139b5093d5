"""Checks that all ranks hold the same model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from hvd_keras._common.autograph import as_it_is
from hvd_keras._gradients import model_state
from hvd_keras._keras import models
from hvd_keras._values.agreement import together
from hvd_keras._values.members import members_of
from hvd_keras.exceptions import InvalidArgumentError, MismatchError
from hvd_keras.process_set import ProcessSet, global_process_set


@as_it_is
def assert_equal_on_all_ranks(
    model: Any,
    *,
    local_variables: Iterable[Any] = (),
    process_set: ProcessSet = global_process_set,
) -> None:
    """Raises an error if a model differs between ranks in any bit.

    It compares weights, the variables of all optimizers of the model, and what
    preprocessing layers have learnt by `adapt`. It leaves out what each rank
    has of its own: local variables, sums of gradients, seeds and metrics.
    During an epoch, moving statistics of `BatchNormalization` differ too;
    `BroadcastGlobalVariablesCallback` averages them when an epoch ends.

    Every rank calls it. It reads all values once (0.5 s a GB) and exchanges 32
    bytes a rank; only ranks that differ exchange more.

    Args:
        model: A Keras model, layer or optimizer, or a list of variables of
            Keras or TensorFlow.
        local_variables: More variables to leave out.
        process_set: The ranks that compare. Defaults to all.

    Raises:
        MismatchError: On all ranks: they differ. It names the first variable
            or layer that differs, and which ranks agree.
        InvalidArgumentError: `model` is something else, or this rank is not in
            `process_set`.

    Example:

    >>> hvd.assert_equal_on_all_ranks(model)
    """
    members_of(process_set, "assert_equal_on_all_ranks")
    states: Iterable[tuple[str, Any]] = ()
    if isinstance(model, keras.layers.Layer):
        local = model_state.local_variables(model, local_variables)
        variables = model_state.common_variables(model, local)
        states = models.adapted_states_of(model)
    elif isinstance(model, keras.optimizers.Optimizer):
        variables = model_state.shared_variables_of(model, local_variables)
    elif isinstance(model, list | tuple):
        variables = model_state.without(local_variables, model)
    else:
        raise InvalidArgumentError(
            "`model` must be a Keras model, layer or optimizer, or a list of "
            f"variables. Received: {type(model).__name__}."
        )
    check = model_state.comparing(variables, states, process_set)
    (difference,) = together("assert_equal_on_all_ranks", [check], process_set)
    if difference is not None:
        raise MismatchError(
            f"All ranks must have equal values. Received: {difference}."
        )
