"""Patches of Keras's private methods on every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._keras.lookup import owner_of


def patch_check_finite(
    wrap: Callable[[Any, Any, Callable[[Any, Any], Any]], Any],
) -> None:
    """Makes `LossScaleOptimizer` call `wrap(self, grads, original)`.

    A second call does nothing.
    """
    owner = keras.optimizers.LossScaleOptimizer
    original = owner.check_finite
    if getattr(original, "_hvd_wrapped", False):
        return

    def check_finite(self: Any, grads: Any) -> Any:
        return wrap(self, grads, original)

    check_finite._hvd_wrapped = True  # type: ignore[attr-defined]
    owner.check_finite = check_finite


def patch_auto_jit_compile(refuses: Callable[[Any], bool]) -> None:
    """Makes `jit_compile="auto"` mean False if `refuses(model)`.

    A second call does nothing.
    """
    name = "_resolve_auto_jit_compile"
    owner = owner_of(name)
    original = getattr(owner, name)
    if getattr(original, "_hvd_wrapped", False):
        return

    def resolve(self: Any) -> bool:
        return not refuses(self) and bool(original(self))

    resolve._hvd_wrapped = True  # type: ignore[attr-defined]
    setattr(owner, name, resolve)
