"""Tells the engine which step of `fit` a reduction of gradients belongs to.

A rank may skip the update of a step by itself, for example in a `tf.cond`. Its
next collective is then one of a later step than that in which the others wait.
The engine compares the steps and fails both on all ranks.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import keras

from hvd_keras import _backends
from hvd_keras._gradients.distributed_class import distributed_parts_of
from hvd_keras._job import training_step
from hvd_keras._keras import advice, models
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras.step_hook import StepHook

_numbers = itertools.count()

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
    wait = _backends.current().wait_for_step
    if wait is not None and not advice.has_own_train_step(model):
        return  # Keras's steps skip no update; to wait would cost time
    thread = threading.get_ident()
    _threads.append(thread)
    fit.at_end += [
        lambda: _threads.remove(thread),
        training_step.tell_unknown,
    ]
    _Count(model, fit, wait)


class _Count(StepHook):
    """Counts the batches that the train function has begun.

    All ranks take equally many in each call.

    Args:
        model: The model that trains.
        fit: The call of `fit` that is running.
        wait: Waits for what a step returns. None: it has ended by then.
    """

    def __init__(
        self,
        model: keras.Model,
        fit: keras_calls.Call,
        wait: Callable[[Any], object] | None,
    ) -> None:
        super().__init__(model, fit)
        self._wait = wait
        self._number = next(_numbers)
        self._num_steps = 0

    def step(self, batches: Iterable[Any], *state: Any) -> Any:
        before = self._num_steps
        self._num_steps += self.model.steps_per_execution
        self._tell(is_over=False)
        try:
            result = self.train_function(*state, batches)
            if self._wait is not None:
                self._wait(result)
            return result
        except BaseException:
            self._num_steps = before  # no batch was left
            raise
        finally:
            self._tell(is_over=True)

    def _tell(self, is_over: bool) -> None:
        if all(thread == _threads[0] for thread in _threads):
            training_step.tell(self._number, self._num_steps, is_over)
        else:
            training_step.tell_unknown()
