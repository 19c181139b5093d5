"""Calls Python from a graph, and leaves nothing behind when the graph goes.

TensorFlow keeps each function of `tf.numpy_function` and `tf.py_function` for
as long as the process lives, and with it all that the function knows. So it
gets one function for all. That finds the wanted one by its number. Its graph
holds that one, as nothing else does.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf


class _Function:
    def __init__(self, call: Callable[..., Any]) -> None:
        self.call = call


_numbers = itertools.count()
_functions: weakref.WeakValueDictionary[int, _Function] = (
    weakref.WeakValueDictionary()
)


def call_on_arrays(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    dtypes: Sequence[tf.DType],
) -> list[tf.Tensor]:
    """Does what `tf.numpy_function` does; call it in a graph.

    Args:
        function: Gets and returns NumPy arrays.
        inputs: Its arguments.
        dtypes: Those of its results.
    """
    _, token = _ops()
    values = [_numbered(function), *map(tf.convert_to_tensor, inputs)]
    results = tf.raw_ops.PyFunc(input=values, token=token, Tout=dtypes)
    return list(results)


def call_for_variant(function: Callable[[], tf.Tensor]) -> tf.Tensor:
    """Does what `tf.py_function` does for a variant; call it in a graph."""
    _, token = _ops(is_eager=True)
    (result,) = tf.raw_ops.EagerPyFunc(
        input=[_numbered(function)], token=token, Tout=[tf.variant]
    )
    return tf.ensure_shape(result, [])


def _numbered(function: Callable[..., Any]) -> tf.Tensor:
    """Has the graph of now hold a function; returns its number."""
    held = _Function(function)
    number = next(_numbers)
    _functions[number] = held
    # An inner graph may go before the outer one, which has its code too. The
    # outermost is not for functions, and never goes where TensorFlow is eager.
    graph: Any = tf.compat.v1.get_default_graph()
    while True:
        if not hasattr(graph, "_hvd_functions"):
            graph._hvd_functions = []
        graph._hvd_functions.append(held)
        graph = getattr(graph, "outer_graph", None)
        if not hasattr(graph, "outer_graph") and (
            graph is None or tf.compat.v1.executing_eagerly_outside_functions()
        ):
            break
    return tf.constant(number, tf.int64)


def _call(number: Any, *values: Any) -> Any:
    return _functions[int(number)].call(*values)


@functools.cache
def _ops(*, is_eager: bool = False) -> tuple[tf.Graph, bytes]:
    """Returns a graph that TensorFlow knows `_call` by, and its token."""
    with tf.Graph().as_default() as graph:
        number = tf.constant(0, tf.int64)
        if is_eager:
            made = tf.py_function(_call, [number], tf.variant)
        else:
            made = tf.numpy_function(_call, [number], tf.int64)
    return graph, made.op.get_attr("token")
