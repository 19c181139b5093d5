"""Collectives in functions that XLA compiles.

XLA has no kernels for our ops. In a function that it compiles, a collective is
a piece of StableHLO, which TensorFlow runs with its op `XlaCallModule`. The
StableHLO calls a handler of libhvd_ffi.so. Such a call has the gradient of the
op that it replaces.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import control_flow_util, resource_variable_ops

from hvd_keras import _native
from hvd_keras.ops import _xla_library
from hvd_keras.ops._graph import run_independently
from hvd_keras.ops._stablehlo import (
    PLATFORMS,
    TOKEN,
    Collective,
    TensorType,
)

Gradient = Callable[..., Any]

# The gradient of each of our ops, by the op's type.
gradients: dict[str, Gradient] = {}

_ELEMENTS = {
    tf.bool: "i1",
    tf.uint8: "ui8",
    tf.int8: "i8",
    tf.uint16: "ui16",
    tf.int16: "i16",
    tf.uint32: "ui32",
    tf.int32: "i32",
    tf.uint64: "ui64",
    tf.int64: "i64",
    tf.float16: "f16",
    tf.bfloat16: "bf16",
    tf.float32: "f32",
    tf.float64: "f64",
    tf.dtypes.experimental.float8_e4m3fn: "f8E4M3FN",
    tf.dtypes.experimental.float8_e5m2: "f8E5M2",
}

# The collectives that have handlers; grouped ones use the same handlers.
_KINDS = ("allreduce", "reducescatter", "broadcast", "allgather", "alltoall")
CURE = "`jit_compile=False` to `tf.function` or `Model.compile`"

# By kind, the names of calls that were traced with unknown lengths, the latest
# last. XLA knows the lengths of an argument when it compiles. It refuses
# lengths that depend on values.
unknown_lengths: dict[str, dict[str, None]] = collections.defaultdict(dict)

# Whether the gradient of something that XLA compiles is being traced.
# TensorFlow may trace it in a separate graph, which does not know about XLA.
_in_gradient: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "_in_gradient", default=False
)


# Whether the results of the calls being traced all go to `together`.
_has_together: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "_has_together", default=False
)


def in_context() -> bool:
    """Whether the code that runs now is being traced for XLA."""
    if tf.executing_eagerly():
        return False
    graph = tf.compat.v1.get_default_graph()
    return _in_gradient.get() or bool(
        control_flow_util.GraphOrParentsInXlaContext(graph)
    )


class Call:
    """Looks like the op that a call replaces; gradients take it for the op."""

    def __init__(
        self, op_type: str, tensors: Sequence[tf.Tensor], name: str
    ) -> None:
        self.type = op_type
        self.inputs: list[Any] = [*tensors, name]
        self.outputs: list[tf.Tensor] = []
        self.attributes: dict[str, Any] = {
            "prescale_factor": "1",
            "postscale_factor": "1",
            "wire_format": 0,
        }

    def get_attr(self, name: str) -> Any:
        return self.attributes[name]


def emit(
    kind: str, *inputs: Any, name: str | tf.Tensor | None, **attributes: Any
) -> Any:
    """Adds a collective to the function that is being traced.

    Args:
        kind: As in `_emit.emit`.
        inputs: As in `_emit.emit`.
        name: As in `_emit.emit`.
        **attributes: The op's attributes.

    Returns:
        What the op would return.

    Raises:
        NotImplementedError: XLA cannot run the call. The text says what to do.
    """
    base = kind.removeprefix("grouped_")
    _check(kind, base, name)
    is_grouped = base != kind
    tensors = list(inputs[0]) if is_grouped else [inputs[0]]
    if base == "alltoall":
        _check_splits(inputs[1], tensors[0].shape[0], name)
    op_type = "Horovod" + "".join(part.title() for part in kind.split("_"))
    call = Call(op_type, tensors, name or "")
    call.attributes.update(attributes)
    graph = tf.compat.v1.get_default_graph()
    # The name that the kernel would take.
    node_name = name or graph.unique_name(op_type)

    def run(*operands: tf.Tensor) -> Any:
        outputs = _run(base, operands, node_name, call.attributes)

        def gradient(*upstreams: tf.Tensor) -> Any:
            return _gradient(call, operands, outputs, upstreams)

        return outputs, gradient

    if op_type in gradients:
        outputs = list(tf.nest.flatten(tf.custom_gradient(run)(*tensors)))
    else:
        outputs = run(*map(tf.stop_gradient, tensors))[0]
    if is_grouped:
        return outputs
    if base != "alltoall":
        return outputs[0]
    size = len(_native.core().process_set_ranks(attributes["process_set_id"]))
    num_rows = tf.shape(tensors[0])[0]
    return outputs[0], tf.fill([size], num_rows // size)


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """A context for allreduces whose results go to `together` alone.

    On GPUs, they may still be running until then.
    """
    reset = _has_together.set(True)
    try:
        yield
    finally:
        _has_together.reset(reset)


def is_ending_together() -> bool:
    """Whether the caller is in `ending_together`."""
    return _has_together.get()


def together(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the results of several calls once all of them are there.

    XLA does not reuse their memory before that. So computations that come
    later in the program need not wait for the calls. Not differentiable.

    Args:
        tensors: Results of calls that were traced under `ending_together`.
    """
    inputs = [tf.stop_gradient(tensor) for tensor in tensors]
    return _run("together", inputs, "together", {"process_set_id": 0})


def _run(
    kind: str,
    tensors: Sequence[tf.Tensor],
    name: str,
    attributes: dict[str, Any],
) -> list[tf.Tensor]:
    core = _native.core()
    ranks = core.process_set_ranks(attributes["process_set_id"])
    if not all(tensor.shape.is_fully_defined() for tensor in tensors):
        unknown_lengths[kind].pop(name, None)
        unknown_lengths[kind][name] = None
    collective = Collective(
        kind,
        tuple(_type_of(tensor, kind, name) for tensor in tensors),
        _handler_attributes(kind, name, attributes),
        size=len(ranks),
        # A rank may trace a collective that it must not run.
        index=ranks.index(core.rank()) if core.rank() in ranks else 0,
    )
    # The calls of a function must run in the order of tracing: see
    # tf_ops/xla/handlers.h. Each reads and assigns one variable, and TensorFlow
    # keeps that in order, also through branches, loops and functions.
    token = _token()
    *outputs, next_value = _xla_library.call_module()(
        [*tensors, token.read_value()],
        version=9,
        module=collective.module(),
        Sout=[*(result.shape for result in collective.results()), TOKEN.shape],
        Tout=[*(tensor.dtype for tensor in tensors), tf.int64],
        platforms=PLATFORMS,
    )
    run_independently(tf.compat.v1.get_default_graph(), next_value)
    token.assign(next_value, read_value=False)
    return outputs


@functools.cache
def _token() -> Any:
    """Returns the variable that chains the calls. Its value is always 0."""
    # XLA reads only variables on the function's own device.
    device = "GPU:0" if _xla_library.sees_gpu() else "CPU:0"
    with tf.init_scope(), tf.device(device):
        # A strategy or a function would notice that a `tf.Variable` is made.
        return resource_variable_ops.ResourceVariable(
            0, trainable=False, dtype=tf.int64, name="hvd_xla_token"
        )


def _gradient(
    call: Call,
    operands: Sequence[tf.Tensor],
    outputs: list[tf.Tensor],
    upstreams: Sequence[tf.Tensor],
) -> list[tf.Tensor | None]:
    call.inputs[: len(operands)] = operands
    call.outputs = list(outputs)
    others: list[Any] = []
    if call.type == "HorovodAlltoall":
        others = [None]
        call.outputs.append(tf.zeros([0], tf.int32))  # equal parts
    with _tracing_gradient():
        found = gradients[call.type](call, *upstreams, *others)
    return list(found[: len(operands)])


@contextlib.contextmanager
def _tracing_gradient() -> Iterator[None]:
    token = _in_gradient.set(True)
    try:
        yield
    finally:
        _in_gradient.reset(token)


def _handler_attributes(
    kind: str, name: str, attributes: dict[str, Any]
) -> dict[str, str | int | float]:
    chosen: dict[str, str | int | float] = {
        "name": name,
        "process_set_id": int(attributes["process_set_id"]),
    }
    if kind in ("allreduce", "reducescatter"):
        chosen["reduce_op"] = int(attributes["reduce_op"])
        chosen["prescale"] = float(attributes["prescale_factor"])
        chosen["postscale"] = float(attributes["postscale_factor"])
    if kind == "allreduce":
        chosen["wire_format"] = int(attributes["wire_format"])
        chosen["has_together"] = int(_has_together.get())
    if kind == "broadcast":
        chosen["root_rank"] = int(attributes["root_rank"])
    return chosen


def _type_of(tensor: tf.Tensor, kind: str, name: str) -> TensorType:
    if tensor.shape.rank is None:
        raise NotImplementedError(
            f"In a function that XLA compiles, a tensor must have a known "
            f"number of dimensions. Received: {tensor.name!r}, of unknown "
            f"shape, for {kind} '{name}'. Use `tf.ensure_shape`, or pass "
            f"{CURE}."
        )
    return TensorType(_ELEMENTS[tensor.dtype], tuple(tensor.shape.as_list()))


def _check(kind: str, base: str, name: Any) -> None:
    problem = _xla_library.problem()
    if problem is not None:
        problem = f"XLA cannot run collectives: {problem}"
    elif base not in _KINDS:
        problem = (
            f"`{kind}` must be traced without XLA, because XLA does not keep "
            f"side effects in order"
        )
    elif not tf.compat.v1.executing_eagerly_outside_functions():
        problem = f"`{kind}` must be traced without XLA in graphs of TF1"
    elif not isinstance(name, str | None):
        problem = f"`name` of `{kind}` must be a string where XLA compiles"
    if problem is None:
        return
    graph = tf.compat.v1.get_default_graph()
    raise NotImplementedError(
        f"{problem}. Received: a function that XLA compiles (graph "
        f"'{getattr(graph, 'name', '')}', tensor '{name}'). Pass {CURE}."
    )


def _check_splits(
    splits: tf.Tensor, num_rows: int | None, name: str | None
) -> None:
    if splits.shape.num_elements() == 0:
        return
    values = tf.get_static_value(splits)
    are_equal = values is not None and len(set(values.tolist())) == 1
    if are_equal and int(values.sum()) == num_rows:
        return
    raise NotImplementedError(
        f"In a function that XLA compiles, `splits` must be None or equal "
        f"numbers. They and their sum, the number of rows, must be known "
        f"while the function is traced. Otherwise the shape of the result "
        f"would depend on the other ranks. Received: {num_rows} rows, "
        f"splits={splits if values is None else values.tolist()} (tensor "
        f"'{name or ''}'). Pass {CURE}."
    )
