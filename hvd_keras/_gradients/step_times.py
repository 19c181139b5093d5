"""Tells the timeline when the steps of `fit` begin and end."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import keras

from hvd_keras._job import timeline
from hvd_keras._keras import callback_lists
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras.step_hook import StepHook


def watch_beginning_fit(callback_list: Any) -> None:
    """Watches a `fit` that begins while a timeline is recorded."""
    fit = keras_calls.running_fit()
    if fit is None or not timeline.is_on():
        return
    steps = _Steps(callback_list.model, fit)
    callback_lists.add_callback(callback_list, _Epochs(callback_list, steps))


class _Steps(StepHook):
    """Notes each call of the train function."""

    def __init__(self, model: keras.Model, fit: keras_calls.Call) -> None:
        super().__init__(model, fit)
        self.epoch = 0
        self._num_steps = 0

    def step(self, batches: Iterable[Any], *state: Any) -> Any:
        begin = time.monotonic_ns()
        result = self.train_function(*state, batches)
        self._num_steps += self.model.steps_per_execution
        timeline.add_step(
            self._num_steps, self.epoch, begin, time.monotonic_ns()
        )
        return result


class _Epochs(keras.callbacks.Callback):
    """Says which epoch the steps are of."""

    def __init__(self, callback_list: Any, steps: _Steps) -> None:
        super().__init__()
        self._list = callback_list
        self._steps = steps

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._steps.epoch = epoch

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        callback_lists.remove_callback(self._list, self)
