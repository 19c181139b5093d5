"""Makes the class of a distributed optimizer, and tells such optimizers."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any

import keras

from hvd_keras import _backends
from hvd_keras._backends.options import ReduceOptions
from hvd_keras._gradients.reducer import refuse_reduced_twice
from hvd_keras._gradients.reducing_optimizer import ReducingOptimizer, Settings
from hvd_keras._keras import names as private
from hvd_keras.compression import keeps_residuals, name_of

_logger = logging.getLogger(__name__)


def is_distributed(optimizer: Any) -> bool:
    """Whether `optimizer`, or one that it wraps, reduces over the ranks."""
    return distributed_part(optimizer) is not None


def local_variables_of(optimizer: Any) -> list[Any]:
    """Returns the variables that were registered as local with `optimizer`."""
    inner = unwrapped(optimizer)
    return list(inner.hvd_local) if isinstance(inner, ReducingOptimizer) else []


def reduces_over_ranks(model: Any) -> bool:
    """Whether the gradients of `model` are reduced, or may be after `init`."""
    part = distributed_part(getattr(model, "optimizer", None))
    return part is not None and part.hvd_settings.reduce.process_set.size() != 1


def must_not_use_xla(model: Any) -> bool:
    """Whether XLA cannot compile training of `model`; warns once if so."""
    problem = _backends.current().xla_problem()
    if problem is None or not reduces_over_ranks(model):
        return False
    _warn_about_xla(problem)
    return True


@functools.cache
def _warn_about_xla(problem: str) -> None:
    _logger.warning(
        "Models with a distributed optimizer are compiled without XLA "
        "(`jit_compile=False`): %s.",
        problem,
    )


def unwrapped(optimizer: Any) -> Any:
    """Returns the optimizer inside a `LossScaleOptimizer`, or itself."""
    while isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = optimizer.inner_optimizer
    return optimizer


def is_multi_optimizer(optimizer: Any) -> bool:
    # The oldest Keras that we support lacks it.
    multi_optimizer = getattr(keras.optimizers, "MultiOptimizer", ())
    return isinstance(optimizer, multi_optimizer)


def distributed_part(optimizer: Any) -> ReducingOptimizer | None:
    """Returns the first distributed optimizer in `optimizer`."""
    return next(iter(distributed_parts_of(optimizer)), None)


def distributed_parts_of(optimizer: Any) -> list[ReducingOptimizer]:
    """Returns the distributed optimizers in `optimizer`."""
    inner = unwrapped(optimizer)
    parts = inner.optimizers if is_multi_optimizer(inner) else [inner]
    return [part for part in parts if isinstance(part, ReducingOptimizer)]


_lock = threading.Lock()  # so that a base class gets only one subclass


def distribute(optimizer: Any, settings: Settings) -> None:
    """Makes `optimizer`, plain or distributed, reduce as `settings` say."""
    if not isinstance(optimizer, ReducingOptimizer):
        optimizer.__class__ = _distributed_class(type(optimizer))
    optimizer.hvd_distribute(settings)


def _distributed_class(base: type) -> type:
    """Returns the subclass of `base` that reduces; always the same one.

    It is found among the subclasses of `base`, which does not keep it alive.
    """
    with _lock:
        known: type
        for known in base.__subclasses__():
            if vars(known).get("hvd_base") is base:
                return known
        subclass: type = type(
            base.__name__,
            (ReducingOptimizer, base),
            {
                "__module__": base.__module__,
                "__qualname__": base.__qualname__,
                "__doc__": base.__doc__,
                "hvd_base": base,
            },
        )
        private.share_saved_name(subclass, base)
        return subclass


def refuse_residuals(options: ReduceOptions) -> None:
    """Raises ValueError if a compression does not go with loss scaling.

    A residual belongs to a step that a `LossScaleOptimizer` may skip, and has
    the unit of a scale that it changes.
    """
    if keeps_residuals(options.compression):
        raise ValueError(
            "A LossScaleOptimizer skips steps and rescales gradients, so "
            "`compression` must keep no residuals: take `Compression.int8`, or "
            "the policy 'mixed_bfloat16', which needs no loss scaling. "
            f"Received: compression={name_of(options.compression)}."
        )


def check_finite_on_all_ranks(
    optimizer: keras.optimizers.LossScaleOptimizer, grads: Any, check: Any
) -> Any:
    """Whether the gradients are finite on every rank.

    All ranks must get the same answer. Otherwise one would apply a step that
    another skips, and reductions of different steps would pair.
    """
    finite = check(optimizer, grads)
    inner = distributed_part(optimizer)
    if inner is None:
        return finite
    refuse_reduced_twice(grads, inner.name)
    refuse_residuals(inner.hvd_settings.reduce)
    process_set = inner.hvd_step_set
    if not process_set.included():
        return finite
    backend = _backends.current()
    if process_set.size() == 1 and backend.skips_alone:
        return finite
    name = f"{inner.hvd_reducer.name()}/check_finite"
    return backend.all_true(finite, name, process_set)
