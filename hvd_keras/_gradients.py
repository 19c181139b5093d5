"""Reduces a list of gradients: buckets, names, and what ranks must agree on."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_keras import _agreement, basics, config
from hvd_keras import _keras_private as private
from hvd_keras.exceptions import InvalidArgumentError, MismatchError
from hvd_keras.ops import allreduce, grouped_allreduce
from hvd_keras.ops.reduce_op import Average, ReduceOp

Gradient = Any  # tf.Tensor or tf.IndexedSlices


@dataclasses.dataclass(frozen=True)
class ReduceOptions:
    """How gradients become one; the same on all ranks."""

    op: ReduceOp = Average
    sparse_as_dense: bool = False


@dataclasses.dataclass(frozen=True)
class GradientInfo:
    """What one gradient is, as known while it is traced."""

    index: int  # of its variable in the optimizer
    path: str  # of its variable, for messages
    dtype: str
    shape: tuple[int | None, ...]
    is_sparse: bool

    @property
    def num_bytes(self) -> int:
        num_elements = 1
        for length in self.shape:
            num_elements *= length or 1
        return num_elements * int(tf.as_dtype(self.dtype).size)

    def key(self) -> tuple[Any, ...]:
        """What must be equal on all ranks: not the path."""
        return (self.index, self.dtype, self.shape, self.is_sparse)

    def __str__(self) -> str:
        kind = "IndexedSlices" if self.is_sparse else "dense"
        return f"{self.path!r} ({self.dtype}, {list(self.shape)}, {kind})"


def bucket_indices(
    num_bytes: Sequence[int], bucket_bytes: int
) -> list[list[int]]:
    """Cuts gradients into the lists that are reduced as one.

    They go in reverse order of creation, because backpropagation gives the
    gradients of the last layers first; so a bucket is complete, and on its
    way, while the layers before it are still being computed.

    Args:
        num_bytes: Size of each gradient, in order of creation.
        bucket_bytes: No bucket of two gradients or more is larger.

    Returns:
        The indices of each bucket; every index is in exactly one.
    """
    buckets: list[list[int]] = []
    room = 0
    for index in reversed(range(len(num_bytes))):
        if not buckets or num_bytes[index] > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(index)
        room -= num_bytes[index]
    return buckets


class GradientReducer:
    """Reduces the gradients of one optimizer over the ranks."""

    def __init__(self, name: str, options: ReduceOptions) -> None:
        self._name = name
        self._options = options
        self._agreed: set[tuple[Any, ...]] = set()

    def __call__(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        indices: Sequence[int],
        *,
        factor: float = 1.0,
    ) -> list[Gradient]:
        """Returns the gradients, reduced; those of a rank and all its peers.

        Args:
            gradients: This rank's gradients, none of them None.
            variables: The variable of each gradient.
            indices: The place of each variable in the optimizer.
            factor: Multiplies the result of the dense gradients.
        """
        if refuse_xla("gradients", self._name):
            return list(gradients)
        if self._options.sparse_as_dense:
            gradients = [tf.convert_to_tensor(g) for g in gradients]
        infos = [
            _describe(gradient, variable, index)
            for gradient, variable, index in zip(
                gradients, variables, indices, strict=True
            )
        ]
        bucket_bytes = config.current().bucket_bytes
        self._agree(infos, bucket_bytes, factor)
        return self._reduce(list(gradients), infos, bucket_bytes, factor)

    def _reduce(
        self,
        gradients: list[Gradient],
        infos: list[GradientInfo],
        bucket_bytes: int,
        factor: float,
    ) -> list[Gradient]:
        dense = [i for i, info in enumerate(infos) if not info.is_sparse]
        sparse = [i for i, info in enumerate(infos) if info.is_sparse]
        layout = bucket_indices(
            [infos[i].num_bytes for i in dense], bucket_bytes
        )
        reduced = list(gradients)
        with _after(gradients[-1]):
            for number, members in enumerate(layout):
                bucket = [dense[member] for member in members]
                results = grouped_allreduce(
                    [gradients[i] for i in bucket],
                    self._options.op,
                    name=f"{self._name}/bucket_{number}",
                    postscale_factor=factor,
                )
                for i, result in zip(bucket, results, strict=True):
                    result.set_shape(gradients[i].shape)
                    reduced[i] = result
            for i in sparse:
                reduced[i] = allreduce(
                    gradients[i],
                    self._options.op,
                    name=f"{self._name}/sparse_{infos[i].index}",
                )
        return reduced

    def _agree(
        self, infos: list[GradientInfo], bucket_bytes: int, factor: float
    ) -> None:
        """Raises MismatchError on all ranks unless they hold the same list.

        Asked when a list is first seen, so while it is traced or, in eager
        mode, in the first step: the ranks see a new list at the same time, a
        retraced old one need not be asked about. Otherwise a rank without a
        gradient for some variable would wait for its peers, and they for it.
        """
        key = (
            self._name,
            int(self._options.op),
            bucket_bytes,
            factor,
            tuple(info.key() for info in infos),
        )
        if key in self._agreed:
            return
        detail = [
            f"optimizer {self._name!r}",
            f"op={self._options.op.name}, HVD_BUCKET_BYTES={bucket_bytes}, "
            f"factor {factor}",
            *(str(info) for info in infos),
        ]
        values = _agreement.disagreement(
            "DistributedOptimizer/gradients", key, detail
        )
        if values is not None:
            raise MismatchError(_describe_difference(values))
        self._agreed.add(key)


def refuse_xla(what: str, name: str) -> bool:
    """Raises if XLA compiles what is traced; True if one rank is all.

    One process needs no reduction, so there XLA may stay on.
    """
    if not private.in_xla_context():
        return False
    if basics.size() == 1:
        return True
    raise InvalidArgumentError(
        f"The {what} of a distributed optimizer must be reduced outside XLA. "
        "Received: a train step that XLA compiles, which is what "
        "`jit_compile=True` asks for and what Keras's default "
        '`jit_compile="auto"` means on a GPU. Compile the model with '
        "`model.compile(..., jit_compile=False)`, or a function of your own "
        f"with `tf.function(jit_compile=False)` (optimizer {name!r}, rank "
        f"{basics.rank()})."
    )


def _describe(gradient: Gradient, variable: Any, index: int) -> GradientInfo:
    shape = tf.TensorShape(getattr(variable, "shape", gradient.shape))
    return GradientInfo(
        index=index,
        path=str(getattr(variable, "path", getattr(variable, "name", "?"))),
        dtype=gradient.dtype.name,
        shape=tuple(shape.as_list()) if shape.rank is not None else (),
        is_sparse=isinstance(gradient, tf.IndexedSlices),
    )


def _after(gradient: Gradient) -> contextlib.AbstractContextManager[Any]:
    """A context in which ops wait for `gradient` and for the batch.

    A dataset of unknown length ends inside a step, and TensorFlow then still
    runs what does not depend on the batch. A gradient that does not, such as
    that of a weight penalty alone, must not make a collective run then: the
    next step's would pair with it. The batch is among the arguments of the
    function that is traced, or, in a loop that reads it inside, behind the
    gradient that comes first.
    """
    if tf.executing_eagerly():
        return contextlib.nullcontext()
    if isinstance(gradient, tf.IndexedSlices):
        gradient = gradient.values
    return tf.control_dependencies([gradient, *_arguments_of_function()])


def _arguments_of_function() -> list[tf.Tensor]:
    """Returns the arguments of the innermost function that has any.

    A branch has none: all that it uses is captured.
    """
    graph = tf.compat.v1.get_default_graph()
    while hasattr(graph, "outer_graph"):
        captured = {id(tensor) for tensor in graph.internal_captures}
        arguments = [t for t in graph.inputs if id(t) not in captured]
        if arguments:
            return arguments
        graph = graph.outer_graph
    return []


def _describe_difference(values: list[tuple[Any, list[str]]]) -> str:
    index, entries = _agreement.first_difference([d for _, d in values])
    ranks = "; ".join(
        f"rank {rank}: {entry or 'no gradient'}"
        for rank, entry in enumerate(entries)
    )
    counts = [len(detail) - 2 for _, detail in values]
    return (
        "All ranks must reduce the same gradients in the same way. Received: "
        f"{counts} gradients on ranks 0 to {len(counts) - 1}, which differ "
        f"first at entry {index - 2 if index >= 2 else 'options'}: {ranks}. A "
        "variable that a rank's loss does not use has no gradient there; "
        "optimizers that were made in another order have other names (pass "
        "`name=` to DistributedOptimizer)."
    )
