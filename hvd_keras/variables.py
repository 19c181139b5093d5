"""Broadcasts variables from one rank to all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_keras import _backends, _native, basics
from hvd_keras._backends.interface import TensorInfo
from hvd_keras._backends.options import path_of
from hvd_keras._common import training_signs
from hvd_keras._common.autograph import as_it_is
from hvd_keras._values import agreement, refusals
from hvd_keras._values.members import to_root_rank
from hvd_keras._values.steps import in_steps
from hvd_keras.exceptions import InvalidArgumentError, MismatchError
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Average

if TYPE_CHECKING:
    import tensorflow as tf

_AGREEMENT = "broadcast_variables/agreement"


@as_it_is
def broadcast_variables(
    variables: Iterable[Any],
    root_rank: int = 0,
    *,
    process_set: ProcessSet = global_process_set,
    inplace: bool = False,
) -> tf.Operation | None:
    """Gives the variables of all ranks the values they have on `root_rank`.

    Every rank passes variables of the same shapes and dtypes in the same order;
    names may differ. They travel in a few messages, bit for bit.

    In eager code this uses the core's blocking collectives on host memory, not
    TensorFlow ops. It leaves no ops in a graph and returns when the values are
    in place, which suits the start of a training run. All dtypes work. In a
    `tf.function` or a TF1-style graph it adds ops, as `broadcast_` does, and
    takes the dtypes that collectives take. Variables that hold seeds are
    broadcast like any others; give ranks different seeds yourself.

    Args:
        variables: Keras variables, TensorFlow variables, or a mixture.
        root_rank: The global rank whose values all get, also if `process_set`
            holds only some of the ranks.
        process_set: The ranks that take part. Defaults to all.
        inplace: Ignored. Horovod has it; here variables are always changed in
            place.

    Returns:
        None; in a graph the operation that sets the variables.

    Raises:
        InvalidArgumentError: `root_rank` or this rank is not in `process_set`.
            Or `variables` holds something else, or variables whose values are
            not numbers or booleans.
        MismatchError: Ranks passed different variables; on all ranks.
        PeerLostError: A rank left before all had answered.

    Example:

    >>> hvd.broadcast_variables(model.weights, root_rank=0)
    """
    with refusals.told("allgather", _AGREEMENT, process_set):
        variables = _checked(variables)
        backend = _backends.current()
        operation = backend.broadcast_in_graph(
            variables, root_rank, process_set
        )
        if operation is not None:
            return operation
        to_root_rank(root_rank, process_set, "broadcast_variables")
        infos = [backend.describe(variable) for variable in variables]
    _agree(infos, [path_of(variable) for variable in variables], process_set)
    broadcast_alike(variables, root_rank, process_set)
    return None


def _checked(variables: Iterable[Any]) -> list[Any]:
    is_one = hasattr(variables, "assign")
    if not isinstance(variables, Iterable) or is_one:
        name = f" {getattr(variables, 'name', '')!r}" if is_one else ""
        raise InvalidArgumentError(
            "`variables` must be a list of variables. Received: "
            f"{type(variables).__name__}{name}."
        )
    return list(variables)


def broadcast_alike(
    variables: Sequence[Any],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Broadcasts variables, not in a graph, that the ranks have compared."""
    training_signs.has_broadcast_weights = True
    root_rank = to_root_rank(root_rank, process_set, "broadcast_variables")
    infos = list(map(_backends.current().describe, variables))
    described = list(zip(variables, infos, strict=True))
    sizes = [info.num_bytes for info in infos]
    for step, group in enumerate(in_steps(described, sizes)):
        values = [as_bytes(variable) for variable, _ in group]
        received = _native.core().broadcast(
            f"broadcast_variables/{step}",
            values,
            root_rank,
            process_set.process_set_id,
        )
        if basics.rank() == root_rank:
            continue
        for (variable, info), data in zip(group, received, strict=True):
            assign_bytes(variable, info, data)


def average_alike(variables: Sequence[Any], name: str) -> None:
    """Gives variables, not in a graph, their mean over all ranks.

    Args:
        variables: Variables of Keras, the same on all ranks.
        name: Pairs the call across ranks.
    """
    backend = _backends.current()
    sizes = [backend.describe(each).num_bytes for each in variables]
    for step, group in enumerate(in_steps(variables, sizes)):
        values = [np.asarray(backend.read(each)) for each in group]
        means = _native.core().allreduce(
            f"{name}/{step}",
            [
                each.astype(np.result_type(each.dtype, np.float32), copy=False)
                for each in values
            ],
            int(Average),
        )
        for variable, value, mean in zip(group, values, means, strict=True):
            mean = np.asarray(mean)
            if value.dtype.kind in "iub":
                mean = np.rint(mean)
            backend.assign(variable, mean.astype(value.dtype))


@as_it_is
def broadcast_global_variables(root_rank: int = 0) -> tf.Operation | None:
    """Gives all variables of a TF1-style graph the values of `root_rank`.

    Args:
        root_rank: The rank whose values all get.

    Returns:
        The operation that does so.

    Raises:
        RuntimeError: It was called in eager code, which has no list of all
            variables.

    Example, in a graph:

    >>> session.run(tf.compat.v1.global_variables_initializer())
    >>> session.run(hvd.broadcast_global_variables(root_rank=0))
    """
    import tensorflow as tf

    if tf.executing_eagerly():
        raise RuntimeError(
            "`broadcast_global_variables` must be called in a TF1-style graph. "
            "Received: a call in eager code. Use `broadcast_variables` with "
            "the variables of your model and optimizer, or the callback "
            "`hvd_keras.callbacks.BroadcastGlobalVariablesCallback`."
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


def _agree(
    infos: list[TensorInfo], paths: list[str], process_set: ProcessSet
) -> None:
    check = agreement.differing(
        [[info.dtype, info.shape] for info in infos],
        [
            f"{path!r} ({info.dtype}, {list(info.shape)})"
            for path, info in zip(paths, infos, strict=True)
        ],
    )
    (values,) = agreement.together(_AGREEMENT, [check], process_set)
    if values is None:
        return
    index, entries = agreement.first_difference([v for v, _ in values])
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
        f"{ranks}. {training_signs.CURE_OF_MODELS}."
    )


def as_bytes(variable: Any) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Returns a variable's value as bytes. Do not write to them."""
    value = np.ascontiguousarray(_backends.current().read(variable))
    return value.reshape(-1).view(np.uint8)


def assign_bytes(variable: Any, info: TensorInfo, data: Any) -> None:
    """Assigns the value whose bytes `as_bytes` returned on another rank."""
    value = np.ascontiguousarray(data).view(np.dtype(info.dtype))
    shape = [length or 0 for length in info.shape]
    _backends.current().assign(variable, value.reshape(shape))
