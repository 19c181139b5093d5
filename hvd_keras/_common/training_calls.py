"""Notes calls of TensorFlow, JAX, optax and torch that train a model."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from hvd_keras._common import training_signs
from hvd_keras._common.autograph import as_it_is
from hvd_keras._common.replacements import replace

_OF_OPTAX = "Make the optimizer by `hvd_keras.jax.distribute`"
_OF_TORCH = "Wrap the optimizer in `hvd_keras.torch.DistributedOptimizer`"
_OF_TAPE = "Wrap the tape in `hvd.DistributedGradientTape`"
_OF_JAX = (
    "Reduce the gradients by `hvd_keras.jax.allreduce`, or make the optimizer "
    "by `hvd_keras.jax.distribute`"
)


def watch_tensorflow() -> None:
    """Notes gradients for variables."""
    tf = importlib.import_module("tensorflow")

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        @as_it_is
        def gradient(
            self: Any, target: Any, sources: Any, *args: Any, **kw: Any
        ) -> Any:
            if training_signs.gradient is None and any(
                isinstance(getattr(one, "value", one), tf.Variable)
                or isinstance(one, tf.Variable)
                for one in tf.nest.flatten(sources)
            ):
                training_signs.note_gradient("`tape.gradient`", _OF_TAPE)
            return original(self, target, sources, *args, **kw)

        return gradient

    replace(tf.GradientTape, "gradient", noting)


def watch_jax() -> None:
    """Notes functions that compute gradients."""
    jax = importlib.import_module("jax")

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def differentiate(
            fun: Any, argnums: Any = 0, has_aux: bool = False, **kw: Any
        ) -> Any:
            if not hasattr(argnums, "__index__"):
                argnums = tuple(argnums)
            function = original(fun, argnums, has_aux, **kw)
            return _seen(function, argnums, has_aux, original.__name__)

        return differentiate

    for name in ("grad", "value_and_grad"):
        replace(jax, name, noting)


def _seen(function: Any, argnums: Any, has_aux: bool, name: str) -> Any:
    """Returns a function that computes gradients, and lets others see them."""

    @functools.wraps(function)
    def compute(*args: Any, **kw: Any) -> Any:
        training_signs.note_gradient(f"`jax.{name}`", _OF_JAX)
        result = function(*args, **kw)
        gradients = result
        if name == "value_and_grad":
            gradients = result[1]
        elif has_aux:
            gradients = result[0]
        values = (
            [args[n] for n in argnums]
            if isinstance(argnums, tuple)
            else args[argnums]
        )
        for look in training_signs.at_gradients:
            look(values, gradients, len(args) + len(kw) == 1)
        return result

    return compute


def watch_optax() -> None:
    """Notes updates of optax."""
    replace(importlib.import_module("optax"), "apply_updates", _noting)


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply_updates(*args: Any, **kw: Any) -> Any:
        training_signs.note("`optax.apply_updates`", _OF_OPTAX)
        return original(*args, **kw)

    return apply_updates


def watch_torch() -> None:
    """Notes steps of optimizers of torch, and gradients."""
    optimizers = importlib.import_module("torch.optim.optimizer")
    optimizers.register_optimizer_step_post_hook(_note_step)

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def backward(*args: Any, **kw: Any) -> Any:
            training_signs.note_gradient("`backward`", _OF_TORCH)
            return original(*args, **kw)

        return backward

    replace(importlib.import_module("torch.autograd"), "backward", noting)
    module = importlib.import_module("torch.nn").Module
    replace(module, "load_state_dict", _seeing)


def _note_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    training_signs.note_optimizer(optimizer, _trained_by_torch)
    training_signs.note(
        f"the optimizer {type(optimizer).__name__}",
        _OF_TORCH,
        reduces=hasattr(optimizer, "_hvd_reducer"),
    )


def _seeing(original: Callable[..., Any]) -> Callable[..., Any]:
    def load_state_dict(self: Any, *args: Any, **kw: Any) -> Any:
        training_signs.note_change()
        return original(self, *args, **kw)

    return load_state_dict


def _trained_by_torch(optimizer: Any) -> list[Any]:
    groups = optimizer.param_groups
    found = [one for group in groups for one in group["params"]]
    return [one for one in found if one.is_floating_point()]
