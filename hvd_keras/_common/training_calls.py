"""Notes calls of optax and torch that train a model."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from hvd_keras._common import training_signs
from hvd_keras._common.replacements import replace

_OF_OPTAX = "Make the optimizer by `hvd_keras.jax.distribute`"
_OF_TORCH = "Wrap the optimizer in `hvd_keras.torch.DistributedOptimizer`"


def watch_optax() -> None:
    """Notes updates of optax."""
    replace(importlib.import_module("optax"), "apply_updates", _noting)


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply_updates(*args: Any, **kw: Any) -> Any:
        training_signs.note("`optax.apply_updates`", _OF_OPTAX)
        return original(*args, **kw)

    return apply_updates


def watch_torch() -> None:
    """Notes steps of optimizers of torch."""
    optimizers = importlib.import_module("torch.optim.optimizer")
    optimizers.register_optimizer_step_post_hook(_note_step)


def _note_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    training_signs.note(
        f"the optimizer {type(optimizer).__name__}",
        _OF_TORCH,
        reduces=hasattr(optimizer, "_hvd_reducer"),
    )
