"""Broadcast of variables in place, as ops: `broadcast_`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from hvd_keras._common.autograph import as_it_is
from hvd_keras.ops import _arguments, _errors
from hvd_keras.ops._emit import emit, refuses
from hvd_keras.process_set import ProcessSet, global_process_set


@as_it_is
@refuses("grouped_broadcast")
def broadcast_(
    variables: Iterable[Any],
    root_rank: int,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[tf.Tensor]:
    """Gives variables the values they have on `root_rank`, in one request.

    Every rank passes variables of the same shapes and dtypes in the same
    order. In a TF1-style graph, initialize them before you run the results of
    this call. Not differentiable.

    Args:
        variables: One or more TensorFlow variables (resource variables or
            TF1's reference variables), Keras variables, or a mixture.
        root_rank: The global rank whose values all get, also if `process_set`
            holds only some of the ranks.
        name: Pairs this call across ranks. Defaults to the op's graph name, or
            in eager mode to a count of the nameless calls.
        process_set: The ranks that take part. Defaults to all.

    Returns:
        The new values, in the order of `variables`. In a graph, computing a
        value sets its variable.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on a rank.
        MismatchError: Ranks disagree on a shape, a dtype, the number of
            variables or `root_rank`.
        PeerLostError: A rank left before all had answered.
        StalledError: A rank did not come in time.

    Example, on 2 ranks:

    >>> variable = tf.Variable(hvd.rank())
    >>> hvd.broadcast_([variable], root_rank=1)[0].numpy()
    1
    """
    _arguments.check_name(name)
    set_id = _arguments.process_set_id(process_set, name)
    root_rank = _arguments.to_root_rank(root_rank, process_set, name)
    targets = [
        to_variable(variable, name) for variable in to_list(variables, name)
    ]
    if not targets:
        raise _errors.invalid_argument(
            "`variables` must hold one or more variables. Received: an empty "
            f"list{_arguments.of(name)}."
        )
    values = emit(
        "grouped_broadcast",
        [
            _arguments.to_tensor(target, f"variables[{i}]", name)
            for i, target in enumerate(targets)
        ],
        name=name,
        root_rank=root_rank,
        process_set_id=set_id,
    )
    results = []
    for target, value in zip(targets, values, strict=True):
        value.set_shape(target.shape)
        assigned = target.assign(value, read_value=False)
        if tf.executing_eagerly():
            results.append(value)
            continue
        with tf.control_dependencies([assigned]):
            results.append(tf.identity(value))
    return results


def to_list(variables: Iterable[Any], name: str | None = None) -> list[Any]:
    """Returns a list; raises if `variables` is not a list of variables."""
    if _inside(variables) is not None or not isinstance(variables, Iterable):
        raise _errors.invalid_argument(
            "`variables` must be a list of variables. Received: "
            f"{getattr(variables, 'name', variables)!r} of type "
            f"{type(variables).__name__}{_arguments.of(name)}."
        )
    return list(variables)


def to_variable(variable: Any, name: str | None = None) -> tf.Variable:
    """Returns the TensorFlow variable: `variable`, or the one inside it."""
    found = _inside(variable)
    if found is None:
        raise _errors.invalid_argument(
            "`variables` must be TensorFlow or Keras variables. Received: "
            f"{type(variable).__name__}{_arguments.of(name)}."
        )
    return found


def _inside(variable: Any) -> tf.Variable | None:
    # Keras's `value` will not do: in a layer that casts it is another tensor.
    found = getattr(variable, "_value", variable)
    return found if isinstance(found, tf.Variable) else None


tf.no_gradient("HorovodGroupedBroadcast")
