"""Variables from one rank to all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_keras import _agreement, _native, basics, objects
from hvd_keras._autograph import as_it_is
from hvd_keras.exceptions import InvalidArgumentError, MismatchError
from hvd_keras.ops.broadcast_in_place import broadcast_, to_list, to_variable
from hvd_keras.process_set import ProcessSet, global_process_set

# Host memory that one step of a broadcast takes beside the variables.
_STEP_BYTES = 64 << 20


@as_it_is
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int = 0,
    *,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> tf.Operation | None:
    """Gives the variables of all ranks the values they have on `root_rank`.

    Every rank passes the same variables in the same order, by shape and
    dtype; names may differ. All of them travel in a few messages, bit for
    bit, whatever their dtype.

    In eager code this goes through the core's blocking collectives on host
    memory and not through TensorFlow ops: it leaves no ops in a graph and
    blocks until the values are in place, which is what the start of a training
    run wants. In a `tf.function` or a TF1-style graph it adds ops, as
    `broadcast_` does, and takes the dtypes that collectives take. Seeds are the
    caller's business: variables that hold them are broadcast like any other.

    Args:
        variables: Keras variables, TensorFlow variables, or a mixture.
        root_rank: The rank whose values all get: its number among all ranks,
            also where `process_set` is a part of them.
        process_set: The ranks that take part. Defaults to all.
        inplace: Ignored: it is the memory of the variables that is written in
            any case. Horovod has it.

    Returns:
        None; in a graph the operation that sets the variables.

    Raises:
        InvalidArgumentError: `root_rank` is not in `process_set`, or this rank
            is not; `variables` holds something else, or variables whose values
            are not numbers or booleans.
        MismatchError: Ranks passed different variables; on all ranks.
        PeerLostError: A rank left before all had answered.

    Example:

    >>> hvd.broadcast_variables(model.weights, root_rank=0)
    """
    variables = to_list(variables)
    targets = [to_variable(variable) for variable in variables]
    if not tf.executing_eagerly():
        return _broadcast_in_graph(targets, root_rank, process_set)
    what = "broadcast_variables"
    root_rank = objects.to_root_rank(root_rank, process_set, what)
    _agree([describe(variable) for variable in variables], process_set)
    for step, group in enumerate(_steps(targets)):
        values = [as_bytes(variable) for variable in group]
        received = _native.core().broadcast(
            f"broadcast_variables/{step}",
            values,
            root_rank,
            process_set.process_set_id,
        )
        if basics.rank() == root_rank:
            continue
        for variable, data in zip(group, received, strict=True):
            dtype = variable.dtype.as_numpy_dtype
            shape = tuple(variable.read_value().shape)
            variable.assign(np.asarray(data).view(dtype).reshape(shape))
    return None


@as_it_is
def broadcast_global_variables(root_rank: int = 0) -> tf.Operation | None:
    """Gives all variables of a TF1-style graph the values of `root_rank`.

    Args:
        root_rank: The rank whose values all get.

    Returns:
        The operation that does so.

    Raises:
        RuntimeError: Called in eager code, where there is no list of all
            variables.

    Example, in a graph:

    >>> session.run(tf.compat.v1.global_variables_initializer())
    >>> session.run(hvd.broadcast_global_variables(root_rank=0))
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "`broadcast_global_variables` must be called in a TF1-style graph. "
            "Received: a call in eager code. Use `broadcast_variables` with "
            "the variables of your model and optimizer, or the callback "
            "`hvd_keras.callbacks.BroadcastGlobalVariablesCallback`."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def _broadcast_in_graph(
    variables: list[Any], root_rank: int, process_set: ProcessSet
) -> tf.Operation:
    if not variables:
        return tf.no_op()
    return tf.group(
        *(
            broadcast_(group, root_rank, process_set=process_set)
            for group in _steps(variables)
        )
    )


def describe(variable: Any) -> tuple[str, list[int], str]:
    """Returns a variable's dtype, shape and path."""
    target = to_variable(variable)
    dtype = target.dtype
    if not (dtype.is_numpy_compatible and dtype.size) or dtype == tf.string:
        raise InvalidArgumentError(
            "A variable must hold numbers or booleans to be broadcast. "
            f"Received: {_path(variable)!r} of dtype {dtype.name} (rank "
            f"{basics.rank()})."
        )
    # That of a variable may be unknown in part.
    shape = target.read_value().shape.as_list()
    return dtype.name, shape, _path(variable)


def _agree(
    descriptions: list[tuple[str, list[int], str]], process_set: ProcessSet
) -> None:
    values = _agreement.disagreement(
        "broadcast_variables/agreement",
        [description[:2] for description in descriptions],
        [f"{path!r} ({dtype}, {shape})" for dtype, shape, path in descriptions],
        process_set=process_set,
    )
    if values is None:
        return
    index, entries = _agreement.first_difference([v for v, _ in values])
    members = process_set.ranks or []
    ranks = "; ".join(
        f"rank {rank}: {detail[index] if entry else 'nothing'}"
        for rank, entry, (_, detail) in zip(
            members, entries, values, strict=True
        )
    )
    raise MismatchError(
        "All ranks must broadcast the same variables. Received: "
        f"{[len(value) for value, _ in values]} variables on ranks "
        f"{', '.join(map(str, members))}, which differ first at index {index}: "
        f"{ranks}."
    )


def _steps(variables: list[tf.Variable]) -> Iterator[list[tf.Variable]]:
    group: list[tf.Variable] = []
    num_bytes = 0
    for variable in variables:
        size = (variable.shape.num_elements() or 0) * variable.dtype.size
        if group and num_bytes + size > _STEP_BYTES:
            yield group
            group, num_bytes = [], 0
        group.append(variable)
        num_bytes += size
    if group:
        yield group


def as_bytes(variable: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns a copy of a variable's value, as bytes."""
    value = np.ascontiguousarray(to_variable(variable).numpy())
    return value.reshape(-1).view(np.uint8)


def _path(variable: Any) -> str:
    return str(getattr(variable, "path", getattr(variable, "name", "?")))
