"""Hooks between Keras's `fit` and the steps of a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import traces


class StepHook:
    """Stands in for a model's train function in one call of `fit`.

    Several hooks form a chain. A hook whose `fit` has ended does nothing.

    Args:
        model: The model that trains.
        fit: The call of `fit` that is running.
        innermost: Whether the other hooks of the model come before this one.
    """

    def __init__(
        self,
        model: keras.Model,
        fit: keras_calls.Call,
        *,
        innermost: bool = False,
    ) -> None:
        self.model = model
        self.fit = fit
        outer: Any = model
        while innermost and isinstance(outer.train_function, StepHook):
            outer = outer.train_function
        self.train_function = outer.train_function
        outer.train_function = self
        fit.at_end.append(self._leave)

    def _leave(self) -> None:
        """Takes this hook out: a model may see thousands of calls of `fit`."""
        outer: Any = self.model
        while isinstance(outer.train_function, StepHook):
            if outer.train_function is self:
                outer.train_function = self.train_function
                return
            outer = outer.train_function

    def __call__(self, *arguments: Any) -> Any:
        if keras_calls.is_caller(self.fit):
            *state, batches = arguments
            return self.step(batches, *state)
        return self.train_function(*arguments)

    def step(self, batches: Iterable[Any], *state: Any) -> Any:
        """Takes batches and returns logs.

        Args:
            batches: An iterator; on torch, a list of one batch.
            state: On JAX: the state of the model. Pass it on, and return the
                new state beside the logs.

        Raises:
            StopIteration: The epoch ends here; not on torch.
        """
        raise NotImplementedError


def remove_step_hooks(
    model: keras.Model, fit: keras_calls.Call | None = None
) -> None:
    """Removes all hooks from a model, or all but those of a running `fit`."""
    while (
        isinstance(model.train_function, StepHook)
        and model.train_function.fit is not fit
    ):
        model.train_function = model.train_function.train_function


def trace_anew(model: keras.Model) -> None:
    """Makes Keras trace the steps of a model anew; hooks stay."""
    if not model.compiled:
        return
    traces.forget(model)
    model.test_function = model.predict_function = None
    first = model.train_function
    model.make_train_function(force=True)
    if isinstance(first, StepHook):
        last = first
        while isinstance(last.train_function, StepHook):
            last = last.train_function
        last.train_function = model.train_function
        model.train_function = first
