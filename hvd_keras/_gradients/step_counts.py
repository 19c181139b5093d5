"""Tells the engine which step of `fit` a reduction of gradients belongs to.

A rank may skip the update of a step by itself, for example in a `tf.cond`. Its
next reduction then meets that of an earlier step on the other ranks. The engine
compares the steps and fails the reduction on all ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import keras

from hvd_keras._gradients.distributed_class import distributed_parts_of
from hvd_keras._job import training_step
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import models
from hvd_keras._keras.step_hook import StepHook

# The thread of each `fit` whose steps count. Steps of several threads at once
# are not known: the engine has one number for the process.
_threads: list[int] = []


def count_steps_of_fit(callback_list: Any) -> None:
    """Counts the steps of a `fit` that begins."""
    fit, model = keras_calls.running_fit(), callback_list.model
    if fit is None or model.train_function is None:
        return
    if not any(map(distributed_parts_of, models.optimizers_of(model))):
        return
    thread = threading.get_ident()
    _threads.append(thread)
    fit.at_end += [
        lambda: _threads.remove(thread),
        lambda: _tell(training_step.UNKNOWN),
    ]
    _Count(model, fit)


class _Count(StepHook):
    """Counts the batches that the train function has begun.

    All ranks take equally many in each call.
    """

    def __init__(self, model: keras.Model, fit: keras_calls.Call) -> None:
        super().__init__(model, fit)
        self._num_steps = 0

    def step(self, batches: Iterable[Any], *state: Any) -> Any:
        before = self._num_steps
        self._num_steps += self.model.steps_per_execution
        _tell(self._num_steps)
        try:
            return self.train_function(*state, batches)
        except BaseException:
            self._num_steps = before  # no batch was left
            raise


def _tell(num_steps: int) -> None:
    is_alone = all(thread == _threads[0] for thread in _threads)
    training_step.tell(num_steps if is_alone else training_step.UNKNOWN)
