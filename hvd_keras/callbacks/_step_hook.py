"""What stands between Keras's `fit` and the steps of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from hvd_keras import _keras_fit


class StepHook:
    """Stands in for a model's train function in one call of `fit`.

    Several of them form a chain. One whose `fit` has ended does nothing.

    Args:
        model: The model that trains.
        fit: The frame of `fit` that is running.
    """

    def __init__(self, model: keras.Model, fit: Any) -> None:
        self.model = model
        self.fit = fit
        self.train_function = model.train_function
        model.train_function = self

    def __call__(self, iterator: Iterator[Any]) -> Any:
        if _keras_fit.is_caller(self.fit):
            return self.step(iterator)
        return self.train_function(iterator)

    def step(self, iterator: Iterator[Any]) -> Any:
        """Takes batches from the iterator and returns logs.

        Raises:
            StopIteration: The epoch ends here.
        """
        raise NotImplementedError


def remove_step_hooks(model: keras.Model, fit: Any = None) -> None:
    """Removes all hooks from a model, or all but those of a running `fit`."""
    while (
        isinstance(model.train_function, StepHook)
        and model.train_function.fit is not fit
    ):
        model.train_function = model.train_function.train_function
