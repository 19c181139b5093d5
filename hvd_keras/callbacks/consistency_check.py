"""The callback that compares the ranks' models during training."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras import basics
from hvd_keras._common import log
from hvd_keras._gradients import model_state
from hvd_keras._gradients.distributed_class import distributed_parts_of
from hvd_keras._gradients.reducing_optimizer import ReducingOptimizer
from hvd_keras._keras import callback_lists, models
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras.legacy import ForKeras3
from hvd_keras._keras.step_hook import trace_anew
from hvd_keras._values.agreement import together
from hvd_keras.exceptions import MismatchError

_ACTIONS = ("raise", "skip", "ignore")


class ConsistencyCheck(ForKeras3, keras.callbacks.Callback):
    """Compares the weights of all ranks every few steps.

    Ranks that begin equal and get equal gradients stay equal, bit for bit. If
    they do not, something is wrong: a layer or `train_step` that changes
    weights without a gradient, memory, a kernel. This finds it within `every`
    steps.

    It compares trained and frozen weights and the variables of all optimizers.
    It leaves out local variables, and moving statistics such as those of
    `BatchNormalization`, which differ by rank during an epoch.

    It can also look for gradients that are NaN or infinite. One such gradient
    on one rank makes the reduced gradients so, and then the weights of all
    ranks. The update is skipped on all ranks, also for `nonfinite="raise"`; the
    error comes with the next comparison. An update then waits for all
    gradients, as with a `LossScaleOptimizer`, whose skipped steps do not count
    here.

    Every comparison waits for the step, reads all values (0.5 s a GB) and
    exchanges 32 bytes a rank. All ranks have the callback.

    Args:
        every: The number of steps after which it compares, >= 1.
        nonfinite: What to do about gradients that are not finite: "raise" an
            error, "skip" the update and log a line, or "ignore" them, which
            costs nothing.

    Raises:
        ValueError: An argument is wrong.
        MismatchError: From `fit`, on all ranks: they differ. It names the step,
            the first variable that differs, and which ranks agree.
        FloatingPointError: From `fit`, on all ranks: a gradient was not finite.
            It names the step and the rank.

    Example:

    >>> check = hvd.callbacks.ConsistencyCheck(every=100, nonfinite="raise")
    >>> model.fit(dataset, callbacks=[check])
    """

    def __init__(self, every: int = 100, nonfinite: str = "ignore") -> None:
        super().__init__()
        if type(every) is not int or every < 1:
            raise ValueError(
                f"`every` must be an integer >= 1. Received: every={every!r}."
            )
        if nonfinite not in _ACTIONS:
            raise ValueError(
                f"`nonfinite` must be one of {', '.join(_ACTIONS)}. Received: "
                f"nonfinite={nonfinite!r}."
            )
        self.every = every
        self.nonfinite = nonfinite
        self._epoch = 0
        self._num_steps = 0
        self._num_compared = 0
        self._num_skipped = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._num_steps = self._num_compared = self._num_skipped = 0
        callback_list = callback_lists.beginning_callback_list()
        if callback_list is not None:
            callback_lists.call_batch_ends_in_order(callback_list)
        if self.nonfinite != "ignore":
            keras_calls.at_end_of_fit.add(_stop_watching)
            _watch(self.model, True)

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._epoch = epoch

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._num_steps += self.model.steps_per_execution
        fit = keras_calls.running_fit()
        if fit is not None and fit.is_apart:
            return  # compare when they have met
        if self._num_steps - self._num_compared >= self.every:
            self._num_compared = self._num_steps
            self._look_at_gradients()
            self._compare(batch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._look_at_gradients()

    def _compare(self, batch: int) -> None:
        model = self.model
        variables = model_state.trained_variables(
            model, model_state.local_variables(model)
        )
        check = model_state.comparing(variables)
        (difference,) = together("ConsistencyCheck", [check])
        if difference is not None:
            raise MismatchError(
                "All ranks must have equal weights after each step. Received, "
                f"after step {self._num_steps} of this training (epoch "
                f"{self._epoch}, batch {batch}): {difference}."
            )

    def _look_at_gradients(self) -> None:
        total = 0
        for part in _parts_of(self.model):
            if part.hvd_watch is None:
                continue
            num_skipped, first, ranks = part.hvd_watch.found()
            total += num_skipped
            received = (
                f"NaN or infinity from rank {', '.join(map(str, ranks))} in "
                f"step {first} of optimizer {part.name!r} in this training"
            )
            if num_skipped and self.nonfinite == "raise":
                raise FloatingPointError(
                    "All gradients must be finite. The update was skipped. "
                    f"Received: {received}."
                )
            if total > self._num_skipped and basics.rank() == 0:
                log.warning(f"Skipped updates: {total}. First: {received}.")
        self._num_skipped = total


def _parts_of(model: keras.Model) -> list[ReducingOptimizer]:
    return [
        part
        for optimizer in models.optimizers_of(model)
        for part in distributed_parts_of(optimizer)
    ]


def _watch(model: keras.Model, is_on: bool) -> None:
    for part in _parts_of(model):
        part.hvd_set_watch(is_on)
    trace_anew(model)


def _stop_watching(model: keras.Model) -> None:
    if any(part.hvd_watch is not None for part in _parts_of(model)):
        _watch(model, False)
