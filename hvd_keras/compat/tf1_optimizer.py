"""Distributed optimizers of `tf.compat.v1.train`, for TF1-style programs."""

from __future__ import annotations

from typing import Any

from hvd_keras._backends.options import ReduceOptions
from hvd_keras._common.autograph import as_it_is
from hvd_keras._gradients.local_variables import LocalVariables
from hvd_keras._gradients.reducer import GradientReducer
from hvd_keras.reduce_op import Adasum


def distribute_tf1_optimizer(
    optimizer: Any,
    *,
    name: str | None,
    backward_passes_per_step: int,
    average_aggregated_gradients: bool,
    **options: Any,
) -> Any:
    """Makes `compute_gradients` of `optimizer` reduce over all ranks.

    Its class is swapped in place, like that of a Keras optimizer.

    Raises:
        NotImplementedError: An option is not supported here yet.
        ValueError: As `hvd_keras.DistributedOptimizer`.
    """
    del average_aggregated_gradients  # only one batch is aggregated
    # First what is wrong everywhere, then what is missing here, as in Horovod.
    reduce_options = ReduceOptions.checked(**options)
    if backward_passes_per_step != 1:
        raise NotImplementedError(
            "`backward_passes_per_step` must be 1 with an optimizer of "
            "`tf.compat.v1.train`. Received: backward_passes_per_step="
            f"{backward_passes_per_step}. Use a Keras optimizer."
        )
    if options["op"] == Adasum:
        raise NotImplementedError(
            "`op` must be Average or Sum with an optimizer of "
            "`tf.compat.v1.train`: Horovod's Adasum reduces the changes of "
            "variables there, which hvd_keras cannot do. Received: op=Adasum."
        )
    if isinstance(optimizer, _DistributedTf1Optimizer):
        raise ValueError(
            "An optimizer must be made distributed once. Received: "
            f"{type(optimizer).__name__}, which is already distributed."
        )
    base = type(optimizer)
    optimizer._hvd_local = LocalVariables()
    optimizer._hvd_reducer = GradientReducer(
        name or f"Distributed{base.__name__}", reduce_options
    )
    optimizer.__class__ = type(
        base.__name__,
        (_DistributedTf1Optimizer, base),
        {"__module__": base.__module__, "__qualname__": base.__qualname__},
    )
    return optimizer


class _DistributedTf1Optimizer:
    """Mixin that comes before the class of a TensorFlow 1 optimizer."""

    _hvd_local: LocalVariables
    _hvd_reducer: GradientReducer

    @as_it_is
    def compute_gradients(self, *args: Any, **kw: Any) -> list[Any]:
        pairs: list[Any] = super().compute_gradients(  # type: ignore[misc]
            *args, **kw
        )
        present = [i for i, (g, _) in enumerate(pairs) if g is not None]
        if not present:
            return pairs
        reduced = self._hvd_reducer(
            [pairs[i][0] for i in present],
            [pairs[i][1] for i in present],
            present,
            local_ids=self._hvd_local.ids(),
        )
        for i, gradient in zip(present, reduced, strict=True):
            pairs[i] = (gradient, pairs[i][1])
        return pairs

    def register_local_var(self, variable: Any) -> None:
        self._hvd_local.add(variable)
