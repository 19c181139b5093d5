"""Variables from one rank to all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_keras import _agreement, _native, basics
from hvd_keras.exceptions import InvalidArgumentError, MismatchError

# Host memory that one step of a broadcast takes beside the variables.
_STEP_BYTES = 64 << 20


def broadcast_variables(variables: Iterable[Any], root_rank: int = 0) -> None:
    """Gives the variables of all ranks the values they have on `root_rank`.

    Every rank passes the same variables in the same order, by shape and
    dtype; names may differ. All of them travel in a few messages, bit for
    bit, whatever their dtype.

    This goes through the core's blocking collectives on host memory and not
    through TensorFlow ops: it needs no `tf.function`, leaves no ops in a graph
    and blocks until the values are in place, which is what the start of a
    training run wants. Call it from eager code. Seeds are the caller's
    business: variables that hold them are broadcast like any other.

    Args:
        variables: Keras variables, TensorFlow variables, or a mixture.
        root_rank: The rank whose values all get.

    Raises:
        InvalidArgumentError: `root_rank` is no rank, or a variable's values
            are not numbers or booleans.
        RuntimeError: Called while a graph is being built.
        MismatchError: Ranks passed different variables; on all ranks.
        PeerLostError: A rank left before all had answered.

    Example:

    >>> hvd.broadcast_variables(model.weights, root_rank=0)
    """
    variables = list(variables)
    _check(root_rank)
    _agree([_describe(variable) for variable in variables])
    for step, group in enumerate(_steps(variables)):
        values = [_as_bytes(variable) for variable in group]
        received = _native.core().broadcast(
            f"broadcast_variables/{step}", values, root_rank
        )
        if basics.rank() == root_rank:
            continue
        for variable, data in zip(group, received, strict=True):
            dtype = tf.as_dtype(variable.dtype).as_numpy_dtype
            shape = tuple(variable.shape)
            variable.assign(np.asarray(data).view(dtype).reshape(shape))


def _check(root_rank: int) -> None:
    size = basics.size()
    if not 0 <= root_rank < size:
        raise InvalidArgumentError(
            f"`root_rank` must be in [0, {size}). Received: "
            f"root_rank={root_rank} (rank {basics.rank()}, "
            "broadcast_variables)."
        )
    if not tf.executing_eagerly():
        raise RuntimeError(
            "`broadcast_variables` must be called from eager code. Received: "
            "a call while a graph is being built; call it before the "
            "`tf.function`, or use `broadcast` on tensors inside it."
        )


def _describe(variable: Any) -> tuple[str, list[int], str]:
    dtype = tf.as_dtype(variable.dtype)
    if not (dtype.is_numpy_compatible and dtype.size) or dtype == tf.string:
        raise InvalidArgumentError(
            "A variable must hold numbers or booleans to be broadcast. "
            f"Received: {_path(variable)!r} of dtype {dtype.name} (rank "
            f"{basics.rank()})."
        )
    return dtype.name, [int(n) for n in variable.shape], _path(variable)


def _agree(descriptions: list[tuple[str, list[int], str]]) -> None:
    values = _agreement.disagreement(
        "broadcast_variables/agreement",
        [description[:2] for description in descriptions],
        [f"{path!r} ({dtype}, {shape})" for dtype, shape, path in descriptions],
    )
    if values is None:
        return
    index, entries = _agreement.first_difference([v for v, _ in values])
    ranks = "; ".join(
        f"rank {rank}: {detail[index] if entry else 'nothing'}"
        for rank, (entry, (_, detail)) in enumerate(
            zip(entries, values, strict=True)
        )
    )
    raise MismatchError(
        "All ranks must broadcast the same variables. Received: "
        f"{[len(value) for value, _ in values]} variables on ranks 0 to "
        f"{len(values) - 1}, which differ first at index {index}: {ranks}."
    )


def _steps(variables: list[Any]) -> Iterator[list[Any]]:
    group: list[Any] = []
    num_bytes = 0
    for variable in variables:
        size = tf.TensorShape(variable.shape).num_elements() or 0
        size *= tf.as_dtype(variable.dtype).size
        if group and num_bytes + size > _STEP_BYTES:
            yield group
            group, num_bytes = [], 0
        group.append(variable)
        num_bytes += size
    if group:
        yield group


def _as_bytes(variable: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    value = np.ascontiguousarray(variable.numpy())
    return value.reshape(-1).view(np.uint8)


def _path(variable: Any) -> str:
    return str(getattr(variable, "path", getattr(variable, "name", "?")))
