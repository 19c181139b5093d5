"""Sees, in the first steps, what a script seems to have forgotten."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras import _backends, basics, objects
from hvd_keras._gradients import model_state
from hvd_keras._keras import advice, callback_lists
from hvd_keras._keras import calls as keras_calls
from hvd_keras._values import checksums
from hvd_keras._values.agreement import together
from hvd_keras.callbacks._same_arrays import may_share
from hvd_keras.data._counts import source_of

_NAME = "BroadcastGlobalVariablesCallback"


def watch(callback_list: Any) -> None:
    """Looks at the first steps of a `fit` without the broadcast callback."""
    fit = keras_calls.running_fit()
    model = callback_list.model
    if fit is not None and fit.has_equal_steps and not may_share(model):
        callback_lists.add_callback(callback_list, _FirstSteps(model))


class Habits:
    """Looks at the first steps of a training. All ranks call all methods."""

    def __init__(self) -> None:
        self._num_begun = 0
        self._looks_for_reductions = False
        self._looks_at_data = False

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to see in this training."""
        return not (self._looks_for_reductions or self._looks_at_data)

    def on_begin(self, model: keras.Model) -> None:
        """Call this when training begins."""
        self._num_begun = 0
        self._looks_at_data = basics.size() > 1
        is_plain = basics.size() > 1 and not advice.any_reduces(model)
        self._looks_for_reductions = is_plain
        # Another loop may have an optimizer that the model does not know.
        is_keras = keras_calls.running_fit() is not None
        if is_plain and is_keras and not advice.has_own_train_step(model):
            self._looks_for_reductions = False
            if basics.rank() == 0:
                advice.tell_of_plain_optimizer(model)

    def on_step_begin(self, model: keras.Model, local: list[Any]) -> None:
        """Call this before each step."""
        self._num_begun += 1
        if self._num_begun <= 3:
            self._look(model, local, self._num_begun - 1)

    def on_epoch_end(self, model: keras.Model, local: list[Any]) -> None:
        """Call this after the steps of an epoch, before metrics are reset."""
        self._look(model, local, self._num_begun)

    def _look(
        self, model: keras.Model, local: list[Any], num_steps: int
    ) -> None:
        if self._looks_for_reductions and num_steps >= 1:
            self._looks_for_reductions = False
            variables = model_state.trained_variables(model, local)
            trained = model_state.comparing(variables)
            (difference,) = together(f"{_NAME}/trained", [trained])
            if difference is not None and basics.rank() == 0:
                advice.tell_of_different_weights(model, difference)
        # Not after one step: the first loss of a last layer that begins with
        # zeros is the same for all data.
        if self._looks_at_data and num_steps >= 2:
            self._looks_at_data = False
            read = _backends.current().read
            states = [read(each) for each in model.metrics_variables]
            mine = list(map(checksums.checksum, states))
            of_ranks = objects.allgather_object(mine, name=f"{_NAME}/metrics")
            # A user's `train_step` may leave all of them at 0.
            is_used = any(state.any() for state in states)
            are_equal = all(other == mine for other in of_ranks)
            is_told = is_used and are_equal and not _has_dealt_rows()
            if is_told and basics.rank() == 0:
                advice.tell_of_same_data(model, "equal metrics after two steps")


class _FirstSteps(keras.callbacks.Callback):
    """Sees whether ranks train with the same data."""

    def __init__(self, model: keras.Model) -> None:
        super().__init__()
        self.set_model(model)
        self._habits = Habits()
        self._habits.on_begin(model)

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if not self._habits.is_done:
            self._habits.on_step_begin(self.model, [])


def _has_dealt_rows() -> bool:
    """Whether the rows of `fit` were dealt out: equal ones are all alike."""
    fit = keras_calls.running_fit()
    source = None if fit is None else source_of(fit.data)
    return source is not None and source.deals_rows
