"""Notes calls of Keras that train a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras

from hvd_keras._common import training_signs, user_code
from hvd_keras._common.replacements import replace

_CURE = (
    "Wrap the optimizer in `hvd.DistributedOptimizer`, or the tape in "
    "`hvd.DistributedGradientTape`"
)


def install() -> None:
    """Notes updates of optimizers."""
    for owner in keras.optimizers.Optimizer.__mro__:
        if "apply" in vars(owner):
            replace(owner, "apply", _noting)


@contextlib.contextmanager
def in_fit() -> Iterator[None]:
    """Notes a call of `fit`, while it runs."""
    training_signs.note("`fit`", _CURE)
    before = training_signs.place_of_fit
    training_signs.place_of_fit = before or user_code.place()
    try:
        yield
    finally:
        training_signs.place_of_fit = before


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Any, *args: Any, **kw: Any) -> Any:
        training_signs.note(
            f"the optimizer {type(self).__name__}",
            _CURE,
            reduces=hasattr(type(self), "hvd_settings"),
        )
        return original(self, *args, **kw)

    return apply
