"""Knows the weights of the rows while a training step runs or is traced.

| Name of Keras | Used to |
|---|---|
| `Trainer.train_step` (public, wrapped) | know the data of a step |
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._common.replacements import replace
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras.lookup import owner_of

_weights: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "_weights", default=None
)


def patch_train_step() -> None:
    """Notes the data of Keras's own `train_step`.

    A model with another `train_step` is noted if that calls Keras's.
    """
    replace(owner_of("train_step"), "train_step", _noting)


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    def train_step(self: Any, *args: Any, **kw: Any) -> Any:
        data = kw["data"] if "data" in kw else args[-1]
        before = _weights.set(_weights_in(data))
        try:
            return original(self, *args, **kw)
        finally:
            _weights.reset(before)

    return train_step


def running_weights() -> Any:
    """Returns the weights of the rows of the running step.

    It is None outside of a step, and if no row of it can be filling.
    """
    return _weights.get()


def _weights_in(data: Any) -> Any:
    call = next(iter(keras_calls.running_calls()), None)
    if call is None or not call.may_fill:
        return None
    _, _, weights = keras.utils.unpack_x_y_sample_weight(data)
    flat = [each for each in keras.tree.flatten(weights) if each is not None]
    return flat[0] if flat else None
