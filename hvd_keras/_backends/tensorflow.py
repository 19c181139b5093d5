"""TensorFlow: collectives are ops, in graphs and in eager code."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_keras import basics
from hvd_keras._backends.interface import Array, Backend, TensorInfo
from hvd_keras._backends.notes import Note
from hvd_keras._backends.options import ReduceOptions, path_of
from hvd_keras._backends.tensorflow_products import products_of_rows
from hvd_keras._backends.tensorflow_slices import gather_slices
from hvd_keras._backends.tensorflow_sums import are_changed, sums_of_rows
from hvd_keras._keras.tensorflow import is_in_other_strategy
from hvd_keras._values.steps import in_steps
from hvd_keras.compression import wire_alone
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.ops import _early, _xla, _xla_library
from hvd_keras.ops.allreduce import allreduce
from hvd_keras.ops.broadcast_in_place import broadcast_, to_variable
from hvd_keras.ops.grouped_allreduce import grouped_allreduce
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Average, Min, Sum


class TensorFlowBackend(Backend):
    """Adapts TensorFlow."""

    @property
    def skips_alone(self) -> bool:
        # A graph may outlive a job of one rank and run in a larger one, so it
        # must reduce. A program of XLA is made for one number of ranks.
        return _xla.in_context()

    def describe_gradient(self, gradient: Any, variable: Any) -> TensorInfo:
        shape = tf.TensorShape(getattr(variable, "shape", gradient.shape))
        return TensorInfo(
            dtype=gradient.dtype.name,
            shape=tuple(shape.as_list()) if shape.rank is not None else (),
            is_sparse=isinstance(gradient, tf.IndexedSlices),
        )

    def to_dense(self, gradient: Any) -> tf.Tensor:
        return tf.convert_to_tensor(gradient)

    def scaled(self, gradient: Any, factor: float) -> Any:
        if factor == 1.0:
            return gradient
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(
                self.scaled(gradient.values, factor),
                gradient.indices,
                gradient.dense_shape,
            )
        return gradient * tf.cast(factor, gradient.dtype)

    def weighted(self, gradient: Any, weight: Any) -> Any:
        if isinstance(gradient, tf.IndexedSlices):
            return tf.IndexedSlices(
                self.weighted(gradient.values, weight),
                gradient.indices,
                gradient.dense_shape,
            )
        return gradient * tf.cast(weight, gradient.dtype)

    def grouped_allreduce(
        self,
        tensors: list[Any],
        *,
        name: str,
        options: ReduceOptions,
        postscale: float,
        seal: tuple[int, ...] | None = None,
    ) -> list[tf.Tensor]:
        members = tensors
        if seal is not None:
            members = [*members, tf.zeros(seal, members[0].dtype)]
        with _xla.ending_together():
            results = grouped_allreduce(
                members,
                name=name,
                prescale_factor=1.0 / options.gradient_predivide_factor,
                postscale_factor=postscale,
                op=options.op,
                compression=wire_alone(options.compression),
                process_set=options.process_set,
            )[: len(tensors)]
        for tensor, result in zip(tensors, results, strict=True):
            result.set_shape(tensor.shape)
        return results

    def gather_slices(
        self,
        gradient: Any,
        *,
        name: str,
        options: ReduceOptions,
        factor: float,
        seal: tuple[int, ...] | None = None,
    ) -> tf.IndexedSlices:
        return gather_slices(
            gradient, options, name=name, factor=factor, seal=seal
        )

    def together(self, gradients: list[Any]) -> list[Any]:
        if not _xla.in_context():
            if not tf.executing_eagerly():
                _early.order(gradients)
            return gradients
        # Slices have few bytes, and their lengths may be unknown.
        dense = [g for g in gradients if isinstance(g, tf.Tensor)]
        if not dense:
            return gradients
        results = iter(_xla.together(dense))
        return [
            next(results) if isinstance(g, tf.Tensor) else g for g in gradients
        ]

    @contextlib.contextmanager
    def reducing(self, last: Any, device: str) -> Iterator[None]:
        on = tf.device(device) if device else contextlib.nullcontext()
        with _after(last), on:
            yield

    def mean_over_ranks(
        self,
        value: Any,
        name: str,
        process_set: ProcessSet,
        chain: list[Any],
    ) -> tf.Tensor:
        mean = allreduce(value, Average, name=name, process_set=process_set)
        mean.set_shape(value.shape)
        return mean

    def all_true(self, flag: Any, name: str, process_set: ProcessSet) -> Any:
        everywhere = allreduce(
            tf.cast(flag, tf.int32), Min, name=name, process_set=process_set
        )
        return tf.cast(everywhere, tf.bool)

    def sum(self, tensor: Any, name: str, process_set: ProcessSet) -> Any:
        return allreduce(tensor, Sum, name=name, process_set=process_set)

    def sum_in_layer(
        self, tensor: Any, name: Callable[[], str], process_set: ProcessSet
    ) -> tf.Tensor:
        if tf.executing_eagerly():
            return allreduce(tensor, Sum, name=name(), process_set=process_set)
        # The name of the node names the call: it stays unique when a function
        # is called twice, and under two tapes.
        with tf.name_scope(f"{name().replace('/', '_')}/"):
            return allreduce(tensor, Sum, process_set=process_set)

    def is_in_other_strategy(self) -> bool:
        return is_in_other_strategy()

    def make_cell(self, before: Any) -> Any:
        if before is None:
            return tf.Variable(np.nan, trainable=False, dtype=tf.float32)
        before.assign(np.nan)
        return before

    def make_note(self, size: int) -> Note:
        return _NoteInVariable(size)

    def xla_problem(self) -> str | None:
        problem = _xla_library.problem()
        if problem is None and _xla_library.sees_gpu():
            # Opt-in: never run on a GPU.
            problem = (
                "its collectives were never run on a GPU; "
                "`jit_compile=True` tries them"
            )
        return problem

    def describe(self, variable: Any) -> TensorInfo:
        target = to_variable(variable)
        dtype = target.dtype
        is_number = dtype.is_numpy_compatible and dtype.size
        if not is_number or dtype == tf.string:
            raise InvalidArgumentError(
                "A variable must hold numbers or booleans to be broadcast. "
                f"Received: {path_of(variable)!r} of dtype {dtype.name} (rank "
                f"{basics.rank()})."
            )
        # The variable's own shape may be partly unknown.
        shape = target.read_value().shape.as_list()
        return TensorInfo(dtype.name, tuple(shape))

    def read(self, variable: Any) -> Array:
        value: Array = to_variable(variable).numpy()
        return value

    has_values_later = True

    def peek(self, variable: Any) -> Array | None:
        target = to_variable(variable)
        with tf.init_scope():
            if not tf.executing_eagerly() or not target.is_initialized():
                return None
            value: Array = target.numpy()
            return value

    def assign(self, variable: Any, value: Array) -> None:
        to_variable(variable).assign(value)

    def products_of_rows(
        self, data: list[Any], found: list[str]
    ) -> contextlib.AbstractContextManager[None]:
        return products_of_rows(data, found)

    sums_of_rows = staticmethod(sums_of_rows)
    are_changed = staticmethod(are_changed)

    def held(self, value: Any) -> Array | None:
        if isinstance(value, tf.Variable) or (
            isinstance(value, tf.Tensor) and hasattr(value, "numpy")
        ):
            return super().held(value.numpy())
        return super().held(value)

    def broadcast_in_graph(
        self, variables: Sequence[Any], root_rank: int, process_set: ProcessSet
    ) -> Any:
        targets = [to_variable(variable) for variable in variables]
        if tf.executing_eagerly():
            return None
        sizes = [
            (target.shape.num_elements() or 0) * target.dtype.size
            for target in targets
        ]
        return tf.group(
            *(
                broadcast_(group, root_rank, process_set=process_set)
                for group in in_steps(targets, sizes)
            )
        )


class _NoteInVariable(Note):
    """A note that programs of XLA can write too."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self._variable = tf.Variable(self._numbers, trainable=False)

    def add(self, flags: Any) -> None:
        flags = tf.cast(flags, tf.int32)
        steps, bad, first, *_ = tf.unstack(self._variable[:3])
        is_bad = tf.reduce_any(flags > 0)
        is_first = is_bad & (first == 0)
        steps, bad = steps + 1, bad + tf.cast(is_bad, tf.int32)
        head = tf.stack([steps, bad, tf.where(is_first, steps, first)])
        known = tf.where(is_first, flags, self._variable[3:])
        self._variable.assign(tf.concat([head, known], 0))

    def read(self) -> Array:
        numbers: Array = self._variable.numpy()
        return numbers


def _after(gradient: Any) -> contextlib.AbstractContextManager[Any]:
    """A context in which ops wait for `gradient` and for the batch.

    A dataset of unknown length ends inside a step. TensorFlow then still runs
    ops that do not depend on the batch. Some gradients do not, such as that of
    a weight penalty alone. Their collective must not run then, because it would
    pair with that of the next step. So ops wait for the arguments of the traced
    function, which hold the batch. A loop may read the batch inside instead;
    then the gradient that comes first depends on it.
    """
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    if isinstance(gradient, tf.IndexedSlices):
        gradient = gradient.values
    return tf.control_dependencies([gradient, *_arguments_of_function()])


def _arguments_of_function() -> list[tf.Tensor]:
    """Returns the arguments of the innermost function that has any.

    A branch has none: it captures all that it uses.
    """
    graph = tf.compat.v1.get_default_graph()
    while hasattr(graph, "outer_graph"):
        captured = {id(tensor) for tensor in graph.internal_captures}
        arguments = [t for t in graph.inputs if id(t) not in captured]
        if arguments:
            return arguments
        graph = graph.outer_graph
    return []


BACKEND = TensorFlowBackend()
