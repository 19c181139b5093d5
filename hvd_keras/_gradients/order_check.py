"""Compares, all through a `fit`, what ranks take of data that they share."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras._gradients.distributed_class import distributed_parts_of
from hvd_keras._keras import callback_lists, models
from hvd_keras._keras import calls as keras_calls
from hvd_keras._values import agreement
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
    for callback in callbacks:
        if isinstance(callback, _Watch):  # of a `fit` that raised
            callback_lists.remove_callback(callback_list, callback)
    handle = handle_of(fit.data)
    own = None if handle is None else handle.taken.process_set.ranks
    values = agreement.disagreement(
        f"{_NAME}/begin", own, process_set=process_set
    )
    if handle is None or own is None:
        return
    if values is not None:
        of_rank = dict(
            zip(process_set.ranks or (), (v for v, _ in values), strict=True)
        )
        if any(of_rank.get(rank) != own for rank in own):
            return
    watching = _Watch(callback_list, fit, handle.taken)
    watching.set_model(callback_list.model)
    callback_lists.add_callback(callback_list, watching)
    handle.taken.watch()


class _Watch(keras.callbacks.Callback):
    """Compares in the first steps and at the end of each epoch."""

    def __init__(self, callback_list: Any, fit: Any, taken: Any) -> None:
        super().__init__()
        self._list, self.fit, self._taken = callback_list, fit, taken
        self._num_begun = 0
        self._is_first_epoch = True

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._num_begun = 0

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
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
        self._is_first_epoch = False
        self._taken.compare(_NAME)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._taken.forget()
        callback_lists.remove_callback(self._list, self)
