"""Patches of Keras's private methods on every backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._common.replacements import replace
from hvd_keras._keras.lookup import owner_of


def patch_check_finite(
    wrap: Callable[[Any, Any, Callable[[Any, Any], Any]], Any],
) -> None:
    """Makes `LossScaleOptimizer` call `wrap(self, grads, original)`."""

    def wrapping(original: Callable[[Any, Any], Any]) -> Callable[..., Any]:
        return lambda self, grads: wrap(self, grads, original)

    replace(keras.optimizers.LossScaleOptimizer, "check_finite", wrapping)


def patch_auto_jit_compile(refuses: Callable[[Any], bool]) -> None:
    """Makes `jit_compile="auto"` mean False if `refuses(model)`."""

    def refusing(original: Callable[[Any], Any]) -> Callable[[Any], bool]:
        return lambda self: not refuses(self) and bool(original(self))

    name = "_resolve_auto_jit_compile"
    replace(owner_of(name), name, refusing)
