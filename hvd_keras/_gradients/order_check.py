"""Compares, all through a `fit`, what ranks take of data that they share."""

from __future__ import annotations

import weakref
from typing import Any

import keras

from hvd_keras._common import training_signs
from hvd_keras._gradients import model_state
from hvd_keras._gradients.distributed_class import distributed_parts_of
from hvd_keras._keras import advice, callback_lists, models
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import epochs as keras_epochs
from hvd_keras._values.agreement import Check, together
from hvd_keras.data._taken import Taken, comparing
from hvd_keras.data.position import handle_of
from hvd_keras.exceptions import MismatchError
from hvd_keras.process_set import ProcessSet, global_process_set

_NAME = "fit/order"
_RHYTHM = 1024  # steps between two comparisons
# By model: `training_signs.num_changes` when ranks last compared its weights.
_changes_known: weakref.WeakKeyDictionary[Any, int] = (
    weakref.WeakKeyDictionary()
)


def find_shared(fit: Any, process_set: ProcessSet) -> Check:
    """Notes that all ranks that share the data of a `fit` have them.

    Args:
        fit: The running call; None: another loop calls the callbacks.
        process_set: The ranks that train together.
    """
    if fit is None or process_set.size() == 1:
        return
    handle = handle_of(fit.data)
    taken = None if handle is None else handle.taken
    mine = None if taken is None else taken.process_set.process_set_id
    having = (yield mine).count(mine)
    if taken is not None and having == taken.process_set.size():
        fit.taken = taken


def watch(callback_list: Any) -> None:
    """Compares the data of a beginning `fit`."""
    fit = keras_calls.running_fit()
    if fit is None or fit.taken is None:
        return
    watching = Watch(callback_list, fit)
    watching.set_model(callback_list.model)
    callback_lists.add_callback(callback_list, watching)
    fit.taken.watch()


def watch_evaluation(
    model: Any, process_set: ProcessSet = global_process_set
) -> None:
    """Compares the model of a beginning `evaluate` outside of `fit`.

    At its end ranks compare the data. All ranks of `process_set` call it.
    """
    calls = keras_calls.running_calls()
    if len(calls) != 1 or calls[0].method != "evaluate":
        return
    call = calls[0]
    if process_set.size() == 1 or call.compares_order is not None:
        return
    checks = [
        find_shared(call, process_set),
        comparing_model(model, process_set),
    ]
    together("evaluate/order/begin", checks, process_set)
    call.compares_order = call.taken is not None
    if call.taken is not None:
        call.taken.watch()


def _is_unknown(model: Any) -> bool:
    """Whether nobody has compared a model's weights as they may be now."""
    checks = [
        part.hvd_start_check
        for optimizer in models.optimizers_of(model)
        for part in distributed_parts_of(optimizer)
    ]
    if any(each.is_off for each in checks):
        return False
    known = _changes_known.get(model, 0 if checks else None)
    is_due = any(each.is_due() for each in checks)
    return is_due or known != training_signs.num_changes


def comparing_model(model: Any, process_set: ProcessSet) -> Check:
    """Refuses weights that differ, where all ranks compute by a model.

    Ranks compare them once, and after a rank has set some.
    """
    mine = models.is_fully_built(model), _is_unknown(model)
    are_built, are_unknown = zip(*(yield mine), strict=True)
    if not all(are_built) or not any(are_unknown):
        return
    local = model_state.local_variables(model)
    slots = [v for o in models.optimizers_of(model) for v in o.variables]
    trained = model_state.without(
        slots, model_state.trained_variables(model, local)
    )
    difference = yield from model_state.comparing(trained, (), process_set)
    if difference is not None:
        raise MismatchError(
            "Metrics and predictions over all ranks need the same model on all "
            "of them. Call `hvd.broadcast_variables(model.variables, "
            "root_rank=0)` before, or load the weights on each rank. Received: "
            f"{difference}."
        )
    _changes_known[model] = training_signs.num_changes


def end_evaluation() -> None:
    """Compares what ranks have taken in the running `evaluate`, once."""
    for call in keras_calls.running_calls()[:1]:
        taken = call.taken if call.compares_order else None
        call.compares_order = False
        if taken is not None:
            together("evaluate/order", [comparing(taken)], taken.process_set)
            taken.forget()


class Watch(keras.callbacks.Callback):
    """Compares in the first steps and at the end of each epoch."""

    def __init__(self, callback_list: Any, fit: Any) -> None:
        super().__init__()
        self._list, self.fit = callback_list, fit
        self._taken: Taken = fit.taken
        self.process_set = self._taken.process_set
        self._held_out: Taken | None = None  # what is taken for validation
        self._num_begun = 0
        self._is_first_epoch = True
        # Whether another callback compares at the ends of epochs.
        self.is_led = False

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if not keras_calls.is_caller(self.fit):
            return  # it was left by a `fit` that raised
        number, self._num_begun = self._num_begun, self._num_begun + 1
        # The first steps tell of most mistakes.
        is_due = number == 2 or number % _RHYTHM == 0
        if self._is_first_epoch:
            is_due |= number & (number - 1) == 0
        if is_due and number > 1:
            together(_NAME, [comparing(self._taken)], self.process_set)

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._num_begun = 0
        if not self.is_led:
            together(f"{_NAME}/epoch", self.checks(), self.process_set)

    def checks(self) -> list[Check]:
        """Returns those of an epoch that has ended."""
        if not keras_calls.is_caller(self.fit):
            return []
        checks = [comparing(self._taken)]
        if self._is_first_epoch and self._taken.has_targets:
            checks.append(self._comparing_targets())
        self._is_first_epoch = False
        # Some ranks may not validate.
        held_out = self._held_out
        if held_out and held_out.process_set.ranks != self.process_set.ranks:
            held_out = None
        return [*checks, comparing(held_out)]

    def _comparing_targets(self) -> Check:
        is_told = yield from self._taken.comparing_targets()
        if is_told and self.process_set.rank() == 0:
            advice.tell_of_same_data(
                self.model, "equal targets in the batches of all ranks"
            )

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
