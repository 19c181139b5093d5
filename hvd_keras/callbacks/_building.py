"""Builds the models of all ranks before their first step.

Only on TensorFlow there is something to do: elsewhere Keras has done it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Any

import keras

from hvd_keras import basics, objects
from hvd_keras._gradients import fit_check
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras.models import is_fully_built
from hvd_keras._keras.step_hook import StepHook

_logger = logging.getLogger(__name__)


def build_on_all_ranks(
    model: keras.Model,
    fit: keras_calls.Call | None,
    when_built: Callable[[], None],
) -> bool:
    """Builds the model on all ranks and calls `when_built`. Collective.

    It learns the shapes from the description of the data. If that says too
    little, it builds the model with the first batch, right before the first
    step.

    Args:
        model: The model that is about to train.
        fit: The running call of `fit`; None: another loop calls the callbacks.
        when_built: Called once, on all ranks together.

    Returns:
        Whether it has called `when_built`, or will do so. The first step alone
        builds a model of one rank, or in a loop other than `fit`.
    """
    if _all_ranks(is_fully_built(model)):
        when_built()
        return True
    is_alone = basics.size() == 1
    if is_alone or fit is None or keras.backend.backend() != "tensorflow":
        return False
    from hvd_keras._keras import tensorflow_build

    if _build(model, tensorflow_build.spec_of_batches(fit)):
        when_built()
    else:
        _BuildFirst(model, fit, when_built)
    return True


class _BuildFirst(StepHook):
    """Builds the model with the first batch, then gives it that batch."""

    def __init__(
        self,
        model: keras.Model,
        fit: keras_calls.Call,
        when_built: Callable[[], None],
    ) -> None:
        # The others come first: they may end the epoch before the first step.
        super().__init__(model, fit, innermost=True)
        self._when_built: Callable[[], None] | None = when_built

    def step(self, batches: Iterable[Any], *state: Any) -> Any:
        if self._when_built is not None:
            when_built, self._when_built = self._when_built, None
            num_steps = self.model.steps_per_execution
            first = list(itertools.islice(batches, num_steps))
            _build(self.model, first[0], must_succeed=True)
            when_built()
            batches = iter(first)
        return self.train_function(*state, batches)


def _build(
    model: keras.Model, batch: Any, *, must_succeed: bool = False
) -> bool:
    """Builds the model on all ranks; says if that succeeded on all."""
    from hvd_keras._keras import tensorflow_build

    if not is_fully_built(model):
        tensorflow_build.call_with_symbols(model, batch)
    if _all_ranks(is_fully_built(model)):
        return True
    # The ranks compare their gradients in it, so all trace it. They do not
    # compare their weights before the broadcast.
    fit_check.note_as_equal(model)
    try:
        tensorflow_build.trace_step(model, batch)
        is_built = True
    except Exception as error:
        if must_succeed:
            raise
        _logger.debug("%r was not built by its step: %r", model.name, error)
        is_built = False
    return _all_ranks(is_built)


def _all_ranks(flag: bool) -> bool:
    return all(objects.allgather_object(flag, name="is_built"))
