"""Keras optimizers that reduce gradients over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from hvd_keras._backends.options import ReduceOptions
from hvd_keras._common import log
from hvd_keras._gradients.distributed_class import (
    distribute,
    is_multi_optimizer,
    refuse_residuals,
    unwrapped,
)
from hvd_keras._gradients.local_updates import LocalUpdates
from hvd_keras._gradients.local_updates import check as check_local_updates
from hvd_keras._gradients.local_variables import LocalVariables
from hvd_keras._gradients.reducing_optimizer import ReducingOptimizer, Settings
from hvd_keras.compression import (
    Compression,
    Compressor,
    PowerSGDCompressor,
)
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Average, ReduceOp


def _cure_of(optimizer: Any) -> str:
    """Says what is meant by what is no optimizer of Keras."""
    if any(
        kind.__module__.startswith("torch.") for kind in type(optimizer).__mro__
    ):
        return "For torch, `import hvd_keras.torch as hvd`."
    if isinstance(optimizer, keras.Model):
        return "Give it the optimizer of the model, before `compile`."
    return "For tf_keras, use `hvd.DistributedGradientTape`."


def DistributedOptimizer(  # noqa: N802 (the name that Horovod gave it)
    optimizer: keras.optimizers.Optimizer | str | dict[str, Any],
    *,
    name: str | None = None,
    op: ReduceOp = Average,
    compression: type[Compressor] | Compressor = Compression.none,
    sparse_as_dense: bool = False,
    merge_slices: bool = False,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = True,
    schedule_counts_batches: bool = False,
    local_updates: LocalUpdates | None = None,
    gradient_predivide_factor: float = 1.0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    num_groups: int = 0,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    device_dense: str = "",
    device_sparse: str = "",
) -> keras.optimizers.Optimizer:
    """Makes `optimizer` reduce its gradients over all ranks.

    This changes the optimizer itself and returns it. Its class becomes a
    subclass that averages gradients over the ranks before it clips and applies
    them. Its state, its learning rate and `isinstance` stay as they were. A
    model saved with it also loads where hvd_keras is not installed, and then
    has the plain optimizer. `hvd.load_model` loads it and distributes it again.

    With N ranks on shares of the same batch, the weights become those of one
    process on the whole batch. Mixed precision works: with loss scaling, all
    ranks skip a step or none does.

    On torch, gradients are reduced in place: the tensors passed to `apply` are
    overwritten. On JAX, a step of `fit` does not reuse the memory of the model,
    so that the model survives a step that fails.

    `optimizer.register_local_var(variable)`, called before training, keeps the
    gradient of a variable on its rank.

    Args:
        optimizer: A Keras 3 optimizer, or what `keras.optimizers.get` makes
            one of: a name, such as "adam", or a config. In a
            `LossScaleOptimizer`, the inner optimizer is changed.
        name: First part of the names that pair reductions across ranks.
            Defaults to `optimizer.name` without the number that Keras appends.
            If ranks use several optimizers of one name, they must first use
            them in the same order.
        op: `Average`, `Sum`, or `Adasum`, which adds gradients that point in
            different directions and averages those that agree. `Sum` is for
            losses with `reduction="sum"`; with a mean, gradients are N times
            those of one process.
        compression: The form in which gradients travel: `Compression.none`,
            `fp16`, `bf16`, `int8` or `int4`, or `Compression.PowerSGD(rank=4)`.
        sparse_as_dense: Whether gradients of embeddings are made dense and
            reduced, instead of gathered from all ranks. Optimizers with slots
            then also update rows that no batch has used. Needed if XLA compiles
            (`jit_compile=True`) and the ranks have batches of unequal size.
        merge_slices: Whether a rank adds up its slices of one index before it
            sends them: fewer bytes where indices repeat, as words do. Keras's
            Adam and clipping by norm square slices one by one, so training then
            differs from one process on the whole batch; plain SGD does not,
            but for rounding. Programs of XLA have a fixed number of slices, and
            send them all.
        backward_passes_per_step: Number of batches whose gradients Keras
            accumulates (`gradient_accumulation_steps`) before they are reduced
            and applied. `iterations`, the moving average of weights (`use_ema`)
            and weight decay count updates. With an optimizer's own
            `gradient_accumulation_steps` the average counts batches, as in
            Keras.
        average_aggregated_gradients: Whether accumulated gradients are
            averaged over the batches, as in Keras, or summed.
        schedule_counts_batches: Whether a learning rate schedule advances with
            each batch, as in Horovod and plain Keras, or with each update.
        local_updates: An `hvd.LocalUpdates` lets hosts train apart for some
            steps, and then average their weights. It needs `op=Average`, all
            ranks in `process_set`, and `fit`.
        gradient_predivide_factor: Divides gradients before the sum over the
            ranks, and multiplies their average by the same factor. Keeps
            float16 sums in range.
        groups: Which gradients are reduced as one: a number of groups, or lists
            of variables; variables in no list are reduced one by one. None:
            groups of up to HVD_BUCKET_BYTES.
        num_groups: Old name for a number of `groups`; 0: none.
        process_set: The ranks that reduce together. Other ranks train with
            their own gradients.
        scale_local_gradients: Whether gradients of local variables are divided
            by the size of the process set, as averaged ones are.
        device_dense: Device on which dense gradients are reduced; "" lets
            TensorFlow choose.
        device_sparse: The same for gradients of embeddings.

    Returns:
        `optimizer`, or the one made of it. A second call with the same
        arguments changes nothing.

    Raises:
        TypeError: `optimizer` is not a Keras 3 optimizer, or another argument
            has the wrong type.
        ValueError: A value is invalid. Or the optimizer was made distributed
            with other arguments. Or a `LossScaleOptimizer` comes with
            `Compression.int4` or `PowerSGD`. Or `backward_passes_per_step`
            contradicts an optimizer that is built, or that already accumulates.

    Example:

    >>> optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3))
    >>> model.compile(optimizer, loss="mse")
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
    check_local_updates(local_updates, options)
    if isinstance(optimizer, str | dict):
        optimizer = keras.optimizers.get(optimizer)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        refuse_residuals(options)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise TypeError(
            "`optimizer` must be a Keras 3 optimizer from "
            "`keras.optimizers`, its name or its config. Received: "
            f"{type(optimizer).__module__}.{type(optimizer).__qualname__}. "
            f"{_cure_of(optimizer)}"
        )
    inner = unwrapped(optimizer)
    if is_multi_optimizer(inner):
        raise TypeError(
            "The optimizers inside a MultiOptimizer must be made "
            "distributed before they go into it: "
            "MultiOptimizer(OptimizerMap(hvd.DistributedOptimizer(...))). "
            f"Received: {inner.name!r}."
        )
    _warn_of_low_rank(inner, options.compression)
    settings = Settings(
        name=name,
        average_aggregated_gradients=average_aggregated_gradients,
        schedule_counts_batches=bool(schedule_counts_batches),
        local_updates=local_updates,
        backward_passes_per_step=_passes_to_set(
            inner, backward_passes_per_step
        ),
        reduce=options,
    )
    if isinstance(inner, ReducingOptimizer) and inner.hvd_settings != settings:
        raise ValueError(
            "An optimizer must be made distributed once: leave out the second "
            "call, or give it the same options. Received: "
            f"{inner.name!r}, which is distributed with "
            f"{inner.hvd_settings}, and now {settings}."
        )
    _set_accumulation(inner, settings.backward_passes_per_step)
    distribute(inner, settings)
    return optimizer


def _warn_of_low_rank(optimizer: Any, compression: Any) -> None:
    """Warns if PowerSGD meets an optimizer with which it costs accuracy."""
    suits = isinstance(optimizer, keras.optimizers.SGD)
    if isinstance(compression, PowerSGDCompressor) and not suits:
        log.warning(
            f"{compression.wire} is made for SGD; with "
            f"{type(optimizer).__name__} it may cost accuracy. "
            "`Compression.int8` and `int4` suit each optimizer."
        )


def PartialDistributedOptimizer(  # noqa: N802
    optimizer: keras.optimizers.Optimizer | str | dict[str, Any],
    *,
    local_layers: Any = None,
    **options: Any,
) -> keras.optimizers.Optimizer:
    """Makes `optimizer` reduce all gradients except those of `local_layers`.

    Args:
        optimizer: As in `DistributedOptimizer`.
        local_layers: One or more Keras layers that each rank trains by itself.
            They may be built later.
        **options: As in `DistributedOptimizer`.

    Returns:
        As in `DistributedOptimizer`.

    Raises:
        ValueError: `local_layers` holds something else; or as in
            `DistributedOptimizer`.

    Example:

    >>> optimizer = hvd.PartialDistributedOptimizer(
    ...     keras.optimizers.SGD(0.1), local_layers=model.layers[0]
    ... )
    """
    local = LocalVariables()
    local.add_layers(local_layers)
    distributed = DistributedOptimizer(optimizer, **options)
    unwrapped(distributed).hvd_local.add_layers(local_layers)
    return distributed


def _passes_to_set(optimizer: Any, num_passes: int) -> int:
    """Returns `num_passes`; 1 if the optimizer has that number of its own."""
    if type(num_passes) is not int or num_passes < 1:
        raise ValueError(
            "`backward_passes_per_step` must be an integer >= 1. Received: "
            f"backward_passes_per_step={num_passes!r}."
        )
    is_its_own = not (
        isinstance(optimizer, ReducingOptimizer)
        and optimizer.hvd_settings.backward_passes_per_step > 1
    )
    if is_its_own and num_passes == optimizer.gradient_accumulation_steps:
        return 1
    return num_passes


def _set_accumulation(optimizer: Any, num_passes: int) -> None:
    current = optimizer.gradient_accumulation_steps
    if num_passes in (1, current):
        return
    if current:
        raise ValueError(
            "`backward_passes_per_step` must equal the optimizer's own "
            "`gradient_accumulation_steps`, or be left out. Received: "
            f"backward_passes_per_step={num_passes}, "
            f"gradient_accumulation_steps={current} (optimizer "
            f"{optimizer.name!r})."
        )
    if optimizer.built:
        raise ValueError(
            "`backward_passes_per_step` must be set before the optimizer is "
            "built, because accumulation needs its own variables. "
            f"Received: backward_passes_per_step={num_passes} for "
            f"{optimizer.name!r}, which is built. Give it "
            "`gradient_accumulation_steps` when you make it."
        )
    optimizer.gradient_accumulation_steps = num_passes
