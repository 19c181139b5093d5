"""What of a model must be equal on all ranks, and whether it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from hvd_keras import _backends
from hvd_keras._backends.options import path_of
from hvd_keras._gradients import aggregation
from hvd_keras._gradients.distributed_class import (
    distributed_parts_of,
    local_variables_of,
    unwrapped,
)
from hvd_keras._gradients.start_check import shared_variables
from hvd_keras._keras import held, models
from hvd_keras._keras import names as private
from hvd_keras._values import checksums
from hvd_keras._values.agreement import Check
from hvd_keras._values.object_format import encode
from hvd_keras.process_set import ProcessSet, global_process_set


def local_variables(model: Any, others: Iterable[Any] = ()) -> list[Any]:
    """Returns the variables that a rank keeps for itself.

    Args:
        model: The model; its optimizers know their local variables.
        others: More variables of this kind.
    """
    local = [*others, *aggregation.own_states_of(model)]
    for optimizer in models.optimizers_of(model):
        local += local_variables_of(optimizer)
    return local


def common_variables(model: Any, local: Iterable[Any]) -> list[Any]:
    """Returns all variables that the ranks share, each once.

    These are weights and the variables of all optimizers of the model.

    Args:
        model: The model.
        local: Its local variables.
    """
    variables = without(local, model.weights)
    for optimizer in models.optimizers_of(model):
        variables += shared_variables_of(optimizer, local)
    return list({private.identity_of(v): v for v in variables}.values())


def shared_variables_of(
    optimizer: Any, local: Iterable[Any], *, with_apart: bool = False
) -> list[Any]:
    """Returns the variables of an optimizer that the ranks share.

    Args:
        optimizer: The optimizer.
        local: Variables that it trains on this rank alone.
        with_apart: Whether to return those too that only hosts share now.
    """
    parts = distributed_parts_of(optimizer)
    return shared_variables(
        optimizer.variables,
        unwrapped(optimizer),
        [*local, *local_variables_of(optimizer)],
        are_apart=not with_apart and any(each.hvd_is_apart for each in parts),
    )


def trained_variables(model: Any, local: Iterable[Any]) -> list[Any]:
    """Returns the common variables that are equal after each step too.

    They lack what steps change without a gradient, such as the moving mean of
    `BatchNormalization`.
    """
    frozen = [
        weight
        for layer in models.layers_of(model)
        if not layer.trainable
        for weight in layer.weights
    ]
    steady = [*model.trainable_weights, *frozen]
    return without(
        without(steady, model.weights), common_variables(model, local)
    )


def untracked(model: Any) -> Iterator[tuple[str, Any]]:
    """Yields labels and values that layers hold and Keras ignores.

    These are variables, tensors and arrays.

    Layers whose states are said to differ by rank are left out.
    """
    optimizers = models.optimizers_of(model)
    known = [*model.variables, *(v for o in optimizers for v in o.variables)]
    seen = {id(each) for v in known for each in (v, getattr(v, "value", v))}
    layers = models.layers_of(model)
    own = [layer for layer in layers if aggregation.keeps_its_own(layer)]
    read = _backends.current().held
    for _ in held.values_in(own, read, seen):
        pass  # it is seen now
    for layer, path, value in held.values_in(layers, read, seen):
        yield f"{path!r} in layer {layer!r}", value


def without(left_out: Iterable[Any], variables: Iterable[Any]) -> list[Any]:
    """Returns the variables that are not among those to leave out."""
    ids = frozenset(map(private.identity_of, left_out))
    return [v for v in variables if private.identity_of(v) not in ids]


def comparing(
    variables: Iterable[Any],
    states: Iterable[tuple[str, Any]] = (),
    process_set: ProcessSet = global_process_set,
) -> Check:
    """Compares values over the ranks, as `checksums.comparing` does.

    Args:
        variables: Variables of Keras or TensorFlow; read at once.
        states: Names and values of other states.
        process_set: The ranks that compare.
    """
    read = _backends.current().read
    # The states come first: a difference there has other cures.
    values = [
        (label, np.frombuffer(encode(state), np.uint8))
        for label, state in states
    ]
    if process_set.size() != 1:
        values += [(repr(path_of(each)), read(each)) for each in variables]
    numbers = [(label, checksums.checksum(value)) for label, value in values]
    return checksums.comparing(numbers, process_set)
