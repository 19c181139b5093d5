"""Optimizers and tapes with Horovod's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from hvd_keras import gradient_tape
from hvd_keras import optimizer as optimizer_module
from hvd_keras._common.autograph import as_it_is
from hvd_keras._gradients.fit_check import never_compare
from hvd_keras.compat._forwarding import forwarding
from hvd_keras.compat.tf1_optimizer import distribute_tf1_optimizer
from hvd_keras.compression import Compression
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Adasum, Average, ReduceOp

__all__ = [
    "DistributedGradientTape",
    "DistributedOptimizer",
    "KerasDistributedOptimizer",
    "PartialDistributedGradientTape",
    "PartialDistributedOptimizer",
]

Groups = int | Sequence[Sequence[Any]] | None


def DistributedOptimizer(  # noqa: N802
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Groups = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """`DistributedOptimizer` of `horovod.tensorflow`.

    It also takes optimizers of `tf.compat.v1.train`.
    """
    options: dict[str, Any] = {
        "name": name,
        "device_dense": device_dense,
        "device_sparse": device_sparse,
        "compression": compression,
        "sparse_as_dense": sparse_as_dense,
        "backward_passes_per_step": backward_passes_per_step,
        "op": op,
        "gradient_predivide_factor": gradient_predivide_factor,
        "average_aggregated_gradients": average_aggregated_gradients,
        "num_groups": num_groups,
        "groups": groups,
        "process_set": process_set,
        "scale_local_gradients": scale_local_gradients,
    }
    if op == Adasum and average_aggregated_gradients:
        raise ValueError(
            "`average_aggregated_gradients` must be False with Adasum, as in "
            "Horovod. Received: average_aggregated_gradients="
            f"{average_aggregated_gradients!r}."
        )
    if isinstance(optimizer, tf.compat.v1.train.Optimizer):
        return distribute_tf1_optimizer(optimizer, **options)
    if use_locking:
        raise ValueError(
            "`use_locking` must be False: Keras 3 optimizers have no locks. "
            f"Received: use_locking={use_locking!r}."
        )
    options["optimizer"] = optimizer
    return _call_optimizer(optimizer_module.DistributedOptimizer, options)


def _call_optimizer(
    target: Callable[..., Any], arguments: dict[str, Any]
) -> Any:
    optimizer = target(schedule_counts_batches=True, **arguments)
    # Programs for Horovod may broadcast after the first step.
    never_compare(optimizer)
    return optimizer


KerasDistributedOptimizer = forwarding(
    optimizer_module.DistributedOptimizer,
    "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op backward_passes_per_step "
    "average_aggregated_gradients num_groups groups process_set "
    "scale_local_gradients",
    call=_call_optimizer,
    name="KerasDistributedOptimizer",
    doc="`DistributedOptimizer` of `horovod.tensorflow.keras`.",
)
PartialDistributedOptimizer = forwarding(
    optimizer_module.PartialDistributedOptimizer,
    "optimizer name device_dense device_sparse compression sparse_as_dense "
    "gradient_predivide_factor op backward_passes_per_step "
    "average_aggregated_gradients groups process_set local_layers "
    "scale_local_gradients",
    call=_call_optimizer,
    doc="`PartialDistributedOptimizer` of `horovod.keras`.",
)


@as_it_is
def DistributedGradientTape(  # noqa: N802
    gradtape: tf.GradientTape, *args: Any, **kw: Any
) -> Any:
    """`DistributedGradientTape` of `horovod.tensorflow`.

    It takes the arguments of `hvd_keras.DistributedGradientTape`. The fourth
    argument of the tape's `gradient` may be `use_generic_names`, as in Horovod.
    """
    return _take_fourth(
        gradient_tape.DistributedGradientTape(gradtape, *args, **kw)
    )


def _call_tape(target: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    return _take_fourth(target(**arguments))


PartialDistributedGradientTape = forwarding(
    gradient_tape.PartialDistributedGradientTape,
    "gradtape device_dense device_sparse compression sparse_as_dense op "
    "gradient_predivide_factor num_groups groups process_set local_layers "
    "scale_local_gradients",
    call=_call_tape,
    doc="`PartialDistributedGradientTape` of `horovod.tensorflow`.",
)


class _HorovodTape:
    """Mixin: the fourth argument of `gradient` may be Horovod's or TF's."""

    @as_it_is
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
        use_generic_names: bool = False,
    ) -> Any:
        if isinstance(unconnected_gradients, bool):
            use_generic_names = unconnected_gradients
            unconnected_gradients = tf.UnconnectedGradients.NONE
        return super().gradient(  # type: ignore[misc]
            target,
            sources,
            output_gradients,
            unconnected_gradients,
            use_generic_names,
        )


_classes: dict[type, type] = {}


def _take_fourth(tape: Any) -> Any:
    base = type(tape)
    if base not in _classes:
        _classes[base] = type(base.__name__, (_HorovodTape, base), {})
    tape.__class__ = _classes[base]
    return tape
