"""The one function that every collective goes through."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util

from hvd_keras import _native
from hvd_keras.ops import _errors

_counters = {
    kind: itertools.count()
    for kind in ("allreduce", "grouped_allreduce", "allgather", "broadcast")
}


def emit(
    kind: str,
    tensors: tf.Tensor | Sequence[tf.Tensor],
    *,
    name: str | tf.Tensor | None,
    **attributes: Any,
) -> Any:
    """Runs a collective, or adds its op to the graph under construction.

    Eager: each kind counts its nameless calls, which pairs them across ranks.
    Graph: the kernel takes the node's name where there is none, and the op is
    taken out of the automatic control dependencies: they would chain the
    collectives of a function one to the other, which hinders overlap and hangs
    ranks that traced in different orders.

    Args:
        kind: "allreduce" for `HorovodAllreduce`, and so on.
        tensors: The op's first input: a tensor, or a list for a grouped op.
        name: Pairs the call across ranks.
        attributes: The op's attributes.

    Returns:
        The op's output: a tensor, or a list for a grouped op.
    """
    # XLA will get a lowering of its own here.
    function = getattr(_native.ops(), f"horovod_{kind}")
    _errors.install()
    if tf.executing_eagerly():
        if name is None:
            name = _name_tensor(f"{kind}.{next(_counters[kind])}")
        elif isinstance(name, str):
            name = _known_name_tensor(name)
        try:
            return function(tensors, name, **attributes)
        except tf.errors.OpError as error:
            raise _errors.convert(error) from None

    graph = tf.compat.v1.get_default_graph()
    _refuse_xla(graph, kind)
    control_dependencies = getattr(graph, "experimental_acd_manager", None)
    output = function(
        tensors,
        "" if name is None else name,
        iterations_may_overlap=control_dependencies is None
        or not tf.compat.v1.executing_eagerly_outside_functions(),
        **attributes,
    )
    if control_dependencies is not None:
        first = output[0] if isinstance(output, list) else output
        control_dependencies.run_independently(first.op)
    return output


def _name_tensor(name: str) -> tf.Tensor:
    # Of a Python string TensorFlow would leave its fast path, three times as
    # slow.
    with tf.device("CPU:0"):
        return tf.constant(name)


_known_name_tensor = functools.lru_cache(maxsize=1024)(_name_tensor)


def _refuse_xla(graph: tf.Graph, kind: str) -> None:
    if control_flow_util.GraphOrParentsInXlaContext(graph):
        raise NotImplementedError(
            f"`{kind}` must be traced without XLA. Received: a function that "
            f"XLA compiles (graph '{getattr(graph, 'name', '')}'). Pass "
            f"`jit_compile=False` to `tf.function` or `Model.compile`."
        )
