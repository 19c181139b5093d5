"""Tells models of tf_keras (Keras 2), which our callbacks cannot train."""

from __future__ import annotations

from typing import Any


class ForKeras3:
    """First base of a callback, which refuses models of tf_keras.

    tf_keras gives its callbacks the model before it looks for methods that
    callbacks of Keras 3 lack.
    """

    def set_model(self, model: Any) -> None:
        _refuse_tf_keras(model)
        super().set_model(model)  # type: ignore[misc]


def _refuse_tf_keras(model: Any) -> None:
    """Raises TypeError if `model` is one of tf_keras."""
    modules = {
        base.__module__.partition(".")[0] for base in type(model).__mro__
    }
    if "tf_keras" in modules:
        raise TypeError(
            "The model must be one of Keras 3 for the callbacks of hvd_keras. "
            f"Received: {type(model).__module__}.{type(model).__qualname__}. "
            "Unset TF_USE_LEGACY_KERAS and import `keras`. A loop of your own "
            "with `hvd.DistributedGradientTape` works with tf_keras."
        )
