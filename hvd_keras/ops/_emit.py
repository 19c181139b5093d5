"""The one function that every collective goes through."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from hvd_keras import _native
from hvd_keras._job import state
from hvd_keras._values import refusals
from hvd_keras._values.calls import counted_name
from hvd_keras.ops import _early, _errors, _one_thread, _retracing, _xla
from hvd_keras.ops._graph import run_independently
from hvd_keras.process_set import ProcessSet, global_process_set

Function = TypeVar("Function", bound=Callable[..., Any])

# Install now: TensorFlow makes the key of a traced function before its first
# op. `import hvd_keras` or that of TensorFlow, the later one, gets here.
_errors.install()
_retracing.install()
_one_thread.install()


def emit(
    kind: str,
    *inputs: Any,
    name: str | tf.Tensor | None,
    process_set_id: int = 0,
    in_program_order: bool = False,
    **attributes: Any,
) -> Any:
    """Runs a collective, or adds its op to the graph under construction.

    A nameless call still needs a name that pairs it across ranks. In eager
    mode that is a count of the nameless calls of its kind. In a graph, the
    kernel takes the name of the node.

    In a graph the op leaves the automatic control dependencies. They would run
    the collectives of a function one after the other. That hinders overlap,
    and ranks that traced in different orders would wait for each other for
    ever.

    Args:
        kind: "allreduce" for `HorovodAllreduce`, and so on.
        inputs: The op's inputs except the name; a list for a grouped op.
        name: Pairs the call across ranks.
        process_set_id: The set that runs it.
        in_program_order: Whether a function runs the op in order with its
            other side effects. Needed if the op has no output that others
            could wait for.
        attributes: The op's other attributes.

    Returns:
        The op's outputs as TensorFlow gives them: a tensor, a tuple, or a list
        for a grouped op. An op without outputs gives None, in a graph the
        operation.
    """
    attributes["process_set_id"] = process_set_id
    if _xla.in_context():
        return _xla.emit(kind, *inputs, name=name, **attributes)
    is_early = (
        kind == "grouped_allreduce"
        and not tf.executing_eagerly()
        and _early.is_wanted()
    )
    if is_early:
        kind += "_start"
    function = getattr(_native.ops(), f"horovod_{kind}")
    if tf.executing_eagerly():
        if name is None:
            name = _name_tensor(counted_name(kind, process_set_id))
        elif isinstance(name, str):
            name = _known_name_tensor(name)
        refusals.submit()
        try:
            return function(*inputs, name, **attributes)
        except tf.errors.OpError as error:
            raise _errors.convert(error) from None

    if kind == "grouped_allreduce" and _ends_early():
        attributes["done_early"] = True
    graph = tf.compat.v1.get_default_graph()
    control_dependencies = getattr(graph, "experimental_acd_manager", None)
    output = function(
        *inputs,
        "" if name is None else name,
        iterations_may_overlap=control_dependencies is None
        or not tf.compat.v1.executing_eagerly_outside_functions(),
        **attributes,
    )
    if is_early:
        return _early.end(graph, output)
    if not in_program_order:
        run_independently(graph, output)
    return output


def refuses(kind: str) -> Callable[[Function], Function]:
    """Decorates a function that emits a collective of this kind.

    The other ranks are told if its arguments are wrong. In a graph, they wait
    for any of its collectives, for a graph is not built by halves.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def refusing(*args: Any, **kwargs: Any) -> Any:
            call = functools.partial(_call, kind, args, kwargs)
            return refusals.run(function, args, kwargs, call)

        return refusing  # type: ignore[return-value]

    return decorate


def _call(kind: str, args: Any, kwargs: Any) -> refusals.Call | None:
    """Returns what the other ranks then wait for; counts a nameless call."""
    name = kwargs.get("name")
    process_set = kwargs.get("process_set", global_process_set)
    if not isinstance(name, str | None) or name == "":
        return None  # no rank has such a name
    if not isinstance(process_set, ProcessSet):
        return None  # others may wait in any
    if not tf.executing_eagerly():
        return kind, refusals.WHOLE_PROGRAM, process_set
    if any(
        isinstance(x, tf.IndexedSlices) for x in tf.nest.flatten((args, kwargs))
    ):
        kind, name = "grouped_allgather", name and f"{name}/indices"
    if name is None:
        name = counted_name(kind, process_set.process_set_id or 0)
    return kind, name, process_set


def _ends_early() -> bool:
    """Whether ops on GPUs need not wait for the GPU.

    TensorFlow then queues clipping and the update while gradients are reduced.
    A loss of a rank is an error one collective later.
    """
    job = state.job()
    setting = None if job is None else job.config.gpu_async_completion
    return _xla.is_ending_together() and setting is not False


def _name_tensor(name: str) -> tf.Tensor:
    # With a Python string TensorFlow leaves its fast path: three times slower.
    with tf.device("CPU:0"):
        return tf.constant(name)


_known_name_tensor = functools.lru_cache(maxsize=1024)(_name_tensor)
