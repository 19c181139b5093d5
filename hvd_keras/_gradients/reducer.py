"""Reduces a list of gradients, after the ranks agreed on the list."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from hvd_keras import _backends, basics
from hvd_keras._backends.interface import Gradient, TensorInfo
from hvd_keras._backends.options import ReduceOptions, path_of
from hvd_keras._common import error_text, log, training_signs
from hvd_keras._gradients.groups import group_indices
from hvd_keras._gradients.optimizer_names import agreed_name
from hvd_keras._job import membership, state
from hvd_keras._keras import names as private
from hvd_keras._keras.steps import running_batch, running_step
from hvd_keras._values import agreement
from hvd_keras._values.agreement import Check, together
from hvd_keras._values.buckets import bucket_bytes, bucket_indices
from hvd_keras.compression import name_of, wire_format_of
from hvd_keras.data import _own_loops
from hvd_keras.exceptions import InvalidArgumentError, MismatchError
from hvd_keras.process_set import ProcessSet
from hvd_keras.reduce_op import Average, Max


@dataclasses.dataclass(frozen=True)
class GradientInfo:
    """What is known of one gradient while it is traced."""

    index: int  # of its variable in the optimizer
    path: str  # of its variable, for messages
    tensor: TensorInfo

    def key(self) -> tuple[Any, ...]:
        """Returns what must be equal on all ranks: all but the path."""
        tensor = self.tensor
        return (self.index, tensor.dtype, tensor.shape, tensor.is_sparse)

    def __str__(self) -> str:
        tensor = self.tensor
        kind = "IndexedSlices" if tensor.is_sparse else "dense"
        return (
            f"{self.path!r} (variable {self.index}, {tensor.dtype}, "
            f"{list(tensor.shape)}, {kind})"
        )


class GradientReducer:
    """Reduces the gradients of one optimizer or tape over the ranks.

    Args:
        label: First part of the names that pair reductions across ranks.
        options: How to reduce.
        what: "optimizer" or "tape", for messages.
        agrees: Whether the ranks agree on a name when they first reduce, and
            compare each new list of gradients. If not, `label` is the name, and
            the engine compares the list with each bucket.
    """

    def __init__(
        self,
        label: str,
        options: ReduceOptions,
        *,
        what: str = "optimizer",
        agrees: bool = True,
    ) -> None:
        self._label = self._name = label
        self._options = options
        self._what = what
        self._agrees = agrees
        # Generation and process set for which the ranks agreed on these lists.
        self._scope: tuple[int, int | None] | None = None
        self._agreed: set[tuple[Any, ...]] = set()

    def name(self) -> str:
        """Returns the first part of the names of all its collectives.

        In each generation, all ranks of the process set make the first call
        together, unless they have run the check `naming` before.
        """
        process_set = self._options.process_set
        together("DistributedOptimizer/name", [self.naming()], process_set)
        return self._name

    def naming(self) -> Check:
        """Finds a name that is the same on all ranks."""
        generation = membership.trace_generation()
        set_id = self._options.process_set.process_set_id
        if self._agrees and (generation, set_id) != self._scope:
            self._name = yield from agreed_name(self._label, generation, set_id)
            self._scope = generation, set_id
            self._agreed.clear()

    def __call__(
        self,
        gradients: Sequence[Gradient],
        variables: Sequence[Any],
        indices: Sequence[int],
        *,
        factor: float = 1.0,
        local_ids: frozenset[int] = frozenset(),
    ) -> list[Gradient]:
        """Returns the gradients, reduced over the process set.

        A rank that is not in the process set keeps its own.

        Args:
            gradients: This rank's gradients, none of them None.
            variables: The variable of each gradient.
            indices: The place of each variable in the optimizer.
            factor: Multiplies the results.
            local_ids: `identity_of` variables whose gradients stay on this
                rank.
        """
        gradients = list(gradients)
        process_set = self._options.process_set
        if self._options.op == Average:
            _own_loops.note_reduction(process_set)
        size = process_set.size()
        if size is None:
            state.check_joined(f"training with a distributed {self._what}")
            raise InvalidArgumentError(
                "`process_set` must be registered with `init` or "
                f"`add_process_set`. Received: {process_set} ({self._what} "
                f"{self._label!r}, rank {basics.rank()})."
            )
        backend = _backends.current()
        alone = size == 1 and backend.skips_alone
        reduces = bool(process_set.included()) and not alone
        is_local = [private.identity_of(v) in local_ids for v in variables]
        scale = factor
        if self._options.scale_local_gradients and process_set.included():
            scale /= size
        reduced = [
            backend.scaled(gradient, scale if local else factor)
            if local or not reduces
            else gradient
            for gradient, local in zip(gradients, is_local, strict=True)
        ]
        if not reduces:
            return reduced
        shared = [i for i, local in enumerate(is_local) if not local]
        if self._options.sparse_as_dense:
            gradients = [backend.to_dense(g) for g in gradients]
        results = self._reduce_shared(
            [gradients[i] for i in shared],
            [variables[i] for i in shared],
            [indices[i] for i in shared],
            factor,
        )
        for i, result in zip(shared, results, strict=True):
            reduced[i] = result
        return reduced

    def largest(self, values: list[Any]) -> list[Any]:
        """Returns the largest of each element over the process set.

        The values are few and small, and the same on all ranks.
        """
        process_set = self._options.process_set
        backend = _backends.current()
        alone = process_set.size() == 1 and backend.skips_alone
        if not values or not process_set.included() or alone:
            return values
        options = dataclasses.replace(
            self._options, op=Max, gradient_predivide_factor=1.0
        )
        with backend.reducing(values[-1], options.device_dense):
            results = backend.grouped_allreduce(
                values,
                name=f"{self.name()}/largest",
                options=options,
                postscale=1.0,
            )
        return backend.together(results)

    def _reduce_shared(
        self,
        gradients: list[Gradient],
        variables: list[Any],
        indices: list[int],
        factor: float,
    ) -> list[Gradient]:
        backend = _backends.current()
        name = self.name()
        infos = [
            GradientInfo(
                index,
                path_of(variable),
                backend.describe_gradient(gradient, variable),
            )
            for gradient, variable, index in zip(
                gradients, variables, indices, strict=True
            )
        ]
        is_sparse = [info.tensor.is_sparse for info in infos]
        dense = [i for i, sparse in enumerate(is_sparse) if not sparse]
        limit = bucket_bytes()
        groups = self._options.groups
        if groups is None:
            layout = bucket_indices(
                [infos[i].tensor.num_bytes for i in dense], limit
            )
        else:
            layout = group_indices([variables[i] for i in dense], groups)
        layout = [[dense[member] for member in members] for members in layout]
        if self._agrees and (backend.traces or not self._agreed):
            self._agree(name, infos, layout, limit, factor)
        reduced = list(gradients)
        if not reduced:
            return reduced
        # Without tracing, a rank cannot tell if a later list is new to others.
        seal = None if self._agrees and backend.traces else _seal(infos)
        options = self._options
        compression = options.compression
        contexts: dict[int, Any] = {}
        with backend.reducing(gradients[-1], options.device_dense):
            for number, bucket in enumerate(layout):
                wires = []
                for i in bucket:
                    wire, contexts[i] = compression.compress(gradients[i])
                    wires.append(wire)
                results = backend.grouped_allreduce(
                    wires,
                    name=_bucket_name(name, number, [infos[i] for i in bucket]),
                    options=options,
                    postscale=options.gradient_predivide_factor * factor,
                    seal=seal,
                )
                for i, result in zip(bucket, results, strict=True):
                    reduced[i] = result
        sparse = [i for i, is_it in enumerate(is_sparse) if is_it]
        with backend.reducing(gradients[-1], options.device_sparse):
            for number, i in enumerate(sparse, len(layout)):
                reduced[i] = backend.gather_slices(
                    gradients[i],
                    name=_bucket_name(name, number, [infos[i]]),
                    options=options,
                    factor=factor,
                    seal=seal,
                )
        reduced = backend.together(reduced)
        for i, context in contexts.items():
            reduced[i] = compression.decompress(reduced[i], context)
        return reduced

    def _agree(
        self,
        name: str,
        infos: list[GradientInfo],
        layout: list[list[int]],
        limit: int,
        factor: float,
    ) -> None:
        """Raises MismatchError on all ranks unless they hold the same list.

        The ranks compare a list when they first see it: during tracing or, in
        eager mode, in the first step. They all see a new list at the same time,
        and a known one that is traced again needs no comparison. Without this
        check, a rank that lacks a gradient and its peers would wait for each
        other.
        """
        options = self._options
        compression = name_of(options.compression)
        parts = (
            name,
            (
                int(options.op),
                compression,
                options.gradient_predivide_factor,
                factor,
                options.process_set.process_set_id,
            ),
            *(info.key() for info in infos),
        )
        key = (parts, tuple(map(tuple, layout)))
        if key in self._agreed:
            return
        grouping = f"HVD_BUCKET_BYTES={limit}"
        if options.groups is not None:
            grouping = f"groups={options.groups}"
        detail = [
            f"{self._what} {name!r}",
            f"op={options.op.name}, factor {factor}, "
            f"compression {compression}, "
            f"gradient_predivide_factor={options.gradient_predivide_factor}",
            *(str(info) for info in infos),
            f"{grouping}, so buckets {layout}",
        ]
        (values,) = together(
            "DistributedOptimizer/gradients",
            [agreement.differing(key, detail)],
            options.process_set,
        )
        if values is not None:
            raise MismatchError(
                _describe_difference(values, options.process_set.ranks or [])
            )
        if not self._agreed and wire_format_of(options.compression):
            self._tell_if_exact(compression)
        self._agreed.add(key)

    def _tell_if_exact(self, compression: str) -> None:
        """Says why a compression between hosts does nothing."""
        if basics.rank() == 0 and basics.cross_size() == 1:
            log.info(
                f"{compression} is off: all ranks are on one host, where "
                "gradients stay exact"
            )


def weighted(
    gradients: list[Gradient], process_set: ProcessSet
) -> list[Gradient]:
    """Returns a batch's gradients, by the weight of this rank's rows."""
    batch = running_batch()
    if batch is None:
        return gradients
    batch.look_at_gradients(gradients)
    weight = batch.gradient_weight(process_set)
    if weight is not None:
        weigh = _backends.current().weighted
        gradients = [weigh(gradient, weight) for gradient in gradients]
    step = running_step()
    if step is not None and step.call.at_gradients is not None:
        step.call.at_gradients(gradients)
    return gradients


def mark_reduced(gradients: Iterable[Gradient]) -> None:
    """Marks gradients as reduced by a tape."""
    for gradient in gradients:
        if gradient is not None:
            gradient._hvd_is_reduced = True


def refuse_reduced_twice(gradients: Iterable[Gradient], name: str) -> None:
    """Raises ValueError if a tape has already reduced a gradient."""
    if any(getattr(g, "_hvd_is_reduced", False) for g in gradients):
        raise ValueError(
            "Gradients must be reduced once: by DistributedGradientTape or by "
            "DistributedOptimizer. Received: gradients of a "
            f"DistributedGradientTape for the distributed optimizer {name!r}. "
            "Use a plain tape or a plain optimizer."
        )


def _bucket_name(name: str, number: int, infos: Sequence[GradientInfo]) -> str:
    # The name must not contain paths: they may differ by rank.
    bucket = f"{name}/bucket_{number}"
    error_text.note_gradients(bucket, [info.path for info in infos])
    return bucket


def _seal(infos: Sequence[GradientInfo]) -> tuple[int, ...]:
    """Returns the shape of an empty tensor that encodes the gradients.

    The engine compares the shapes of all tensors that it reduces. This one
    holds no data to move.
    """
    which = [(info.index, info.tensor.is_sparse) for info in infos]
    return (0, len(infos), zlib.crc32(repr(which).encode()) >> 1)


def _describe_difference(
    values: list[tuple[Any, list[str]]], global_ranks: list[int]
) -> str:
    # The buckets come last: they differ wherever the gradients do.
    parts = [list(parts) for (parts, _), _ in values]
    are_same = all(other == parts[0] for other in parts)
    if are_same:
        parts = [[*here, layout] for (here, layout), _ in values]
    index, entries = agreement.first_difference(parts)
    ranks = "; ".join(
        f"rank {rank}: {'no gradient' if entry is None else detail[index]}"
        for rank, entry, (_, detail) in zip(
            global_ranks, entries, values, strict=True
        )
    )
    counts = [len(detail) - 3 for _, detail in values]
    cure = (
        "A variable has no gradient on a rank whose loss does not use it. If "
        "the ranks first use their optimizers in different orders, the names "
        "differ: pass `name=` to DistributedOptimizer"
    )
    if index >= 2 and not are_same and None not in entries:
        numbers, _, shapes, _ = map(set, zip(*entries, strict=True))
        if len(numbers) == 1 < len(shapes):
            cure = training_signs.CURE_OF_MODELS
    return (
        "All ranks must reduce the same gradients in the same way. Received: "
        f"{counts} gradients on ranks {global_ranks}, which differ "
        f"first at entry {index - 2 if index >= 2 else 'options'}: {ranks}. "
        f"{cure}."
    )
