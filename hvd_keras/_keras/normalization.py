"""The private names of Keras's `BatchNormalization`.

| Name | Used to |
|---|---|
| `BatchNormalization._moments` | normalize with the batches of all ranks |
| `BatchNormalization._reduction_axes` | the same |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._common.replacements import replace
from hvd_keras._keras import calls, saved_forms
from hvd_keras._keras.lookup import require

Moments = Any  # a pair of tensors; None: those of this rank alone


def check_names() -> None:
    """Raises ImportError if a private name is gone or has changed."""
    require(
        keras.layers.BatchNormalization, "_moments", ["self", "inputs", "mask"]
    )


class BatchNormalization(keras.layers.BatchNormalization):
    """Base of a layer that defines `hvd_moments`."""

    def hvd_moments(self, inputs: Any, mask: Any, axes: list[int]) -> Moments:
        raise NotImplementedError

    def _moments(self, inputs: Any, mask: Any) -> Any:
        axes = require(self, "_reduction_axes")
        moments = self.hvd_moments(inputs, mask, axes)
        if moments is None:
            return super()._moments(inputs, mask)
        return moments


def patch_synchronized_moments(
    moments: Callable[[Any, Any, Any, list[int]], Moments],
) -> None:
    """Makes `BatchNormalization(synchronized=True)` call `moments`.

    So does any other where ranks share the batches of a script that knows
    nothing of them.

    `moments` gets the layer, its inputs, their mask and the axes to reduce.
    Keras refuses such a layer on JAX and torch; after this call it does not.
    """

    def synchronizing(original: Callable[..., Any]) -> Callable[..., Any]:
        def _moments(self: Any, inputs: Any, mask: Any) -> Any:
            # Behind a front, a batch of the script is that of all ranks.
            if not (self.synchronized or calls.has_front()):
                return original(self, inputs, mask)
            axes = require(self, "_reduction_axes")
            found = moments(self, inputs, mask, axes)
            if found is not None:
                return found
            if mask is None and not _has_synchronized():
                return keras.ops.moments(inputs, axes)
            return original(self, inputs, mask)

        return _moments

    owner = keras.layers.BatchNormalization
    replace(owner, "_moments", synchronizing)
    if not _has_synchronized():
        replace(owner, "__init__", _accepting_synchronized)
        saved_forms.save_as(owner, _unsynchronized)


def is_plain(layer: Any) -> bool:
    """Whether a layer is Keras's own, and takes the statistics of a rank."""
    is_own = type(layer) is keras.layers.BatchNormalization
    is_of_all = getattr(layer, "synchronized", False) or calls.has_front()
    return is_own and not is_of_all


def axes_of(layer: Any) -> list[int]:
    """Returns the axes over which a layer takes its statistics."""
    axes: list[int] = require(layer, "_reduction_axes")
    return axes


def _has_synchronized() -> bool:
    """Whether Keras knows `synchronized=True` on this backend."""
    return bool(keras.backend.backend() == "tensorflow")


def _unsynchronized(layer: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Returns what Keras, which refuses `synchronized=True` here, can load."""
    if not config.get("synchronized"):
        return {}
    return {"config": {**config, "synchronized": False}}


def _accepting_synchronized(original: Callable[..., Any]) -> Any:
    """Returns an `__init__` that takes `synchronized=True`."""

    def __init__(  # noqa: N807
        self: Any, *args: Any, synchronized: bool = False, **kw: Any
    ) -> None:
        original(self, *args, **kw)
        if synchronized:
            self.synchronized = synchronized

    # Keras compares two ways to inspect; `functools.wraps` satisfies one.
    __init__.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    return __init__


check_names()
