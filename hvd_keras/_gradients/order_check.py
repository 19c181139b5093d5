"""Compares, all through a `fit`, what ranks take of data that they share."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras._gradients.distributed_class import distributed_parts_of
from hvd_keras._keras import advice, callback_lists, models
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import epochs as keras_epochs
from hvd_keras._values import agreement
from hvd_keras.data._taken import Taken
from hvd_keras.data.position import handle_of
from hvd_keras.process_set import ProcessSet, global_process_set

_NAME = "fit/order"
_RHYTHM = 1024  # steps between two comparisons


def watch_beginning_fit(callback_list: Any) -> None:
    """Compares the data of a beginning `fit` if ranks train together."""
    if keras_calls.running_fit() is None:
        return
    for optimizer in models.optimizers_of(callback_list.model):
        for part in distributed_parts_of(optimizer):
            process_set = part.hvd_settings.reduce.process_set
            if process_set.included():
                watch(callback_list, process_set)
            return


def watch(
    callback_list: Any, process_set: ProcessSet = global_process_set
) -> None:
    """Compares the data of a beginning `fit`. A second call does nothing.

    Args:
        callback_list: The callbacks of the `fit`.
        process_set: The ranks that train together; all call this.
    """
    fit, callbacks = keras_calls.running_fit(), callback_list.callbacks
    if fit is None or process_set.size() == 1:
        return
    if any(isinstance(c, _Watch) and c.fit is fit for c in callbacks):
        return
    handle = handle_of(fit.data)
    taken = None if handle is None else handle.taken
    if not _all_have(taken, f"{_NAME}/begin", process_set) or taken is None:
        return
    watching = _Watch(callback_list, fit, taken, process_set)
    watching.set_model(callback_list.model)
    callback_lists.add_callback(callback_list, watching)
    taken.watch()


def watch_evaluation(process_set: ProcessSet = global_process_set) -> None:
    """Compares the data of a beginning `evaluate` outside of `fit` at its end.

    All ranks of `process_set` call it.
    """
    calls = keras_calls.running_calls()
    if len(calls) != 1 or calls[0].method != "evaluate":
        return
    call, name = calls[0], "evaluate/order"
    if process_set.size() == 1 or call.compares_order is not None:
        return
    handle = handle_of(call.data)
    taken = None if handle is None else handle.taken
    call.compares_order = False
    if _all_have(taken, f"{name}/begin", process_set) and taken is not None:
        call.compares_order = True
        taken.watch()


def end_evaluation() -> None:
    """Compares what ranks have taken in the running `evaluate`, once."""
    for call in keras_calls.running_calls()[:1]:
        handle = handle_of(call.data) if call.compares_order else None
        call.compares_order = False
        if handle is not None:
            handle.taken.compare("evaluate/order")
            handle.taken.forget()


def _all_have(taken: Any, name: str, process_set: ProcessSet) -> bool:
    """Whether all ranks that share some data have them; None: this has not.

    All ranks of `process_set` call it.
    """
    own = None if taken is None else taken.process_set.ranks
    values = agreement.disagreement(name, own, process_set=process_set)
    if values is None or own is None:
        return own is not None
    ranks = process_set.ranks or ()
    having = {
        rank
        for rank, (value, _) in zip(ranks, values, strict=True)
        if value == own
    }
    return having.issuperset(own)


class _Watch(keras.callbacks.Callback):
    """Compares in the first steps and at the end of each epoch."""

    def __init__(
        self,
        callback_list: Any,
        fit: Any,
        taken: Taken,
        process_set: ProcessSet,
    ) -> None:
        super().__init__()
        self._list, self.fit = callback_list, fit
        self._taken, self._process_set = taken, process_set
        self._held_out: Taken | None = None  # what is taken for validation
        self._num_begun = 0
        self._is_first_epoch = True

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._num_begun = 0

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if not keras_calls.is_caller(self.fit):
            return  # it was left by a `fit` that raised
        number, self._num_begun = self._num_begun, self._num_begun + 1
        # The first steps tell of most mistakes.
        is_due = number == 2 or number % _RHYTHM == 0
        if self._is_first_epoch and number > 2:
            is_due |= number & (number - 1) == 0
        if is_due:
            self._taken.compare(_NAME)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if not keras_calls.is_caller(self.fit):
            return
        self._taken.compare(_NAME)
        if self._is_first_epoch and self._taken.has_targets:
            is_told = self._taken.have_same_targets(f"{_NAME}/targets")
            if is_told and self._process_set.rank() == 0:
                advice.tell_of_same_data(
                    self.model, "equal targets in the batches of all ranks"
                )
        self._is_first_epoch = False
        # Some ranks may not validate, so all tell whether they do.
        name, held_out = f"{_NAME}/validation", self._held_out
        all_have = _all_have(held_out, f"{name}/begin", self._process_set)
        if all_have and held_out is not None:
            held_out.compare(name)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        handle = handle_of(keras_epochs.data_of_validation(self.model))
        if handle is not None and self._held_out is not handle.taken:
            self._held_out = handle.taken
            if self._held_out is not self._taken:
                self._held_out.watch()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._taken.forget()
        if self._held_out is not None:
            self._held_out.forget()
        callback_lists.remove_callback(self._list, self)
