"""Gradient tapes that reduce their gradients over the ranks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import tensorflow as tf

from hvd_keras._backends.options import ReduceOptions
from hvd_keras._common.autograph import as_it_is
from hvd_keras._gradients import tape_start
from hvd_keras._gradients.local_variables import LocalVariables
from hvd_keras._gradients.reducer import (
    GradientReducer,
    mark_reduced,
    weighted,
)
from hvd_keras._keras.names import identity_of
from hvd_keras.compression import Compression, Compressor
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Average, ReduceOp

_NAME = "DistributedGradientTape"


@as_it_is
def DistributedGradientTape(  # noqa: N802 (the name that Horovod gave it)
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] | Compressor = Compression.none,
    sparse_as_dense: bool = False,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    merge_slices: bool = False,
) -> tf.GradientTape:
    """Makes the `gradient` method of `gradtape` reduce over all ranks.

    This changes the tape itself and returns it, before or after it has
    recorded. The tape may be persistent or nested, in eager code and in a
    `tf.function`. All ranks call `gradient` with sources of the same shapes, in
    the same order.

    With N ranks on shares of the same batch, the gradients become those of one
    process on the whole batch. Apply them with a plain optimizer. A distributed
    one reduces by itself, and refuses gradients that are already reduced.

    The tape changes or gains these methods:

    - `gradient(target, sources, output_gradients=None,
      unconnected_gradients=..., use_generic_names=False)` reduces. Its last
      argument has no effect: names never come from those of the sources.
    - `register_local_source(source)` keeps the gradient of `source` on this
      rank.
    - `get_local_and_global_gradients(target, sources, ...)` returns the result
      of `gradient` as two lists of pairs (source, gradient).
    - `jacobian` and `batch_jacobian` raise: take them from a plain tape.

    Args:
        gradtape: A `tf.GradientTape`.
        device_dense: Device on which dense gradients are reduced; "" lets
            TensorFlow choose.
        device_sparse: The same for gradients of embeddings.
        compression: The form in which gradients travel: `Compression.none`,
            `fp16`, `bf16`, `int8` or `int4`, or `Compression.PowerSGD(rank=4)`.
        sparse_as_dense: Whether gradients of embeddings are made dense and
            reduced, instead of gathered from all ranks.
        op: `Average`, `Sum` or `Adasum`.
        gradient_predivide_factor: Divides gradients before the sum over the
            ranks, and multiplies their average by the same factor.
        num_groups: Old name for a number of `groups`; 0: none.
        groups: Which gradients are reduced as one: a number of groups, or lists
            of variables; variables in no list are reduced one by one. None:
            groups of up to HVD_BUCKET_BYTES.
        process_set: The ranks that reduce together. Other ranks keep their own
            gradients.
        scale_local_gradients: Whether gradients of local sources are divided
            by the size of the process set, as averaged ones are.
        merge_slices: As in `DistributedOptimizer`.

    Returns:
        `gradtape`.

    Raises:
        TypeError: `gradtape` is not a `tf.GradientTape`, or another argument
            has the wrong type.
        ValueError: A value is invalid, or the tape is already distributed.

    `gradient` raises MismatchError on all ranks if variables among the sources
    differ by rank in the second step of eager code, or if the ranks have
    gradients of different sources. The text of the latter shows the shape of
    an empty tensor that encodes them: 0, the number of gradients, and a
    checksum of their sources.

    Example:

    >>> with tf.GradientTape() as tape:
    ...     loss = loss_of(labels, model(images, training=True))
    >>> tape = hvd.DistributedGradientTape(tape)
    >>> gradients = tape.gradient(loss, model.trainable_variables)
    >>> optimizer.apply(gradients, model.trainable_variables)
    """
    options = ReduceOptions.checked(
        op=op,
        compression=compression,
        sparse_as_dense=sparse_as_dense,
        merge_slices=merge_slices,
        gradient_predivide_factor=gradient_predivide_factor,
        groups=groups,
        num_groups=num_groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
        device_dense=device_dense,
        device_sparse=device_sparse,
    )
    return _distribute(gradtape, options, LocalVariables())


@as_it_is
def PartialDistributedGradientTape(  # noqa: N802
    gradtape: tf.GradientTape, *args: Any, local_layers: Any = None, **kw: Any
) -> tf.GradientTape:
    """Makes `gradtape` reduce all gradients except those of `local_layers`.

    Args:
        gradtape: A `tf.GradientTape`.
        *args: As in `DistributedGradientTape`.
        local_layers: One or more Keras layers that each rank trains by itself.
        **kw: As in `DistributedGradientTape`.

    Returns:
        `gradtape`.

    Raises:
        ValueError: `local_layers` holds something else; or as in
            `DistributedGradientTape`.

    Example:

    >>> tape = hvd.PartialDistributedGradientTape(
    ...     tape, local_layers=[model.layers[0]]
    ... )
    """
    local = LocalVariables()
    local.add_layers(local_layers)
    tape: Any = DistributedGradientTape(gradtape, *args, **kw)
    tape._hvd_local.add_layers(local_layers)
    return tape


class _DistributedTape:
    """Mixin that comes before the class of a tape."""

    hvd_base: ClassVar[type]
    _hvd_options: ReduceOptions
    _hvd_local: LocalVariables

    @as_it_is
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        own = super().gradient(  # type: ignore[misc]
            target, sources, output_gradients, unconnected_gradients
        )
        return tf.nest.pack_sequence_as(
            sources, self._hvd_reduce(own, tf.nest.flatten(sources))
        )

    @as_it_is
    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        gradients = self.gradient(target, sources, output_gradients)
        local_ids = self._hvd_local.ids()
        local: list[Any] = []
        shared: list[Any] = []
        for source, gradient in zip(
            tf.nest.flatten(sources), tf.nest.flatten(gradients), strict=True
        ):
            to = local if identity_of(source) in local_ids else shared
            to.append((source, gradient))
        return local, shared

    @as_it_is
    def register_local_source(self, source: Any) -> None:
        self._hvd_local.add(source)

    def jacobian(self, *args: Any, **kw: Any) -> Any:
        raise NotImplementedError(
            "A jacobian must be taken from a plain `tf.GradientTape`: a "
            "distributed one reduces only gradients. Received: a call of "
            "`jacobian` or `batch_jacobian`."
        )

    batch_jacobian = jacobian

    def _hvd_reduce(self, own: Any, sources: list[Any]) -> list[Any]:
        gradients = tf.nest.flatten(own)
        for gradient in gradients:
            if gradient is not None and not isinstance(
                gradient, tf.Tensor | tf.IndexedSlices
            ):
                raise TypeError(
                    "Sources must be tensors or variables. Received: one "
                    f"whose gradient is a {type(gradient).__name__}."
                )
        present = [i for i, g in enumerate(gradients) if g is not None]
        if not present:
            return gradients
        options, local_ids = self._hvd_options, self._hvd_local.ids()
        # Also those without a gradient here: others may have one.
        tape_start.compare(sources, local_ids, options.process_set)
        # A tape lives for one step, so the ranks cannot compare its list once,
        # as they do for an optimizer. Each bucket encodes the list instead, and
        # the engine compares that.
        reducer = GradientReducer(
            _next_name(), options, what="tape", agrees=False
        )
        reduced: list[Any] = reducer(
            weighted([gradients[i] for i in present], options.process_set),
            [sources[i] for i in present],
            present,
            local_ids=local_ids,
        )
        mark_reduced(reduced)
        for i, result in zip(present, reduced, strict=True):
            gradients[i] = result
        return gradients


_classes: dict[tuple[type, type], type] = {}


def _distribute(
    tape: Any,
    options: ReduceOptions,
    local: LocalVariables,
    mixin: type = _DistributedTape,
) -> Any:
    if isinstance(tape, _DistributedTape):
        raise ValueError(
            "A tape must be made distributed once; otherwise its gradients "
            "would be reduced twice. Received: a distributed tape."
        )
    if not isinstance(tape, tf.GradientTape):
        raise TypeError(
            "`gradtape` must be a `tf.GradientTape`. Received: "
            f"{type(tape).__module__}.{type(tape).__qualname__}."
        )
    base = type(tape)
    if (base, mixin) not in _classes:
        _classes[base, mixin] = type(base.__name__, (mixin, base), {})
    tape._hvd_options = options
    tape._hvd_local = local
    tape.__class__ = _classes[base, mixin]
    return tape


def _next_name() -> str:
    """Returns a name that pairs the reductions of one call of `gradient`.

    It holds the name of the traced function and the number of the call in it.
    Other choices would differ by rank: names of variables depend on what else a
    rank has made, and a count of all calls on how often it has traced.
    """
    if tf.executing_eagerly():
        return _NAME
    graph: Any = tf.compat.v1.get_default_graph()
    graph._hvd_num_gradients = getattr(graph, "_hvd_num_gradients", 0) + 1
    # TensorFlow appends its own count to the names of branches and loops.
    function = re.sub(r"_\d+$", "", getattr(graph, "name", "graph"))
    return f"{_NAME}/{function}/{graph._hvd_num_gradients}"
