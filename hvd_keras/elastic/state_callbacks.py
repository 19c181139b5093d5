"""Keras callbacks that keep a `State` up to date in `fit`."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras._keras import callback_lists
from hvd_keras._keras.legacy import ForKeras3


class CommitStateCallback(ForKeras3, keras.callbacks.Callback):
    """Commits a state every few batches and at the end of each epoch.

    Put it last, so that a commit holds what the other callbacks have set.

    Args:
        state: The state.
        batches_per_commit: Batches from one commit to the next.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self._state = state
        self._batches_per_commit = batches_per_commit
        self._num_left = batches_per_commit

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._num_left = self._batches_per_commit
        _end_batches_in_order()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._num_left -= 1
        if self._num_left <= 0:
            self._num_left = self._batches_per_commit
            self._commit()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._commit()

    def _commit(self) -> None:
        model = self.model  # on JAX, this gives it its values
        del model
        self._state.commit()


class UpdateBatchStateCallback(ForKeras3, keras.callbacks.Callback):
    """Sets `state.batch` to the index of the last batch; 0 after an epoch.

    Args:
        state: The state, with an attribute `batch`.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        _end_batches_in_order()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._state.batch = batch

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._state.batch = 0


class UpdateEpochStateCallback(ForKeras3, keras.callbacks.Callback):
    """Sets `state.epoch` to the number of epochs done.

    A `fit` that begins again may pass `initial_epoch=state.epoch`, or fewer
    epochs; both count right.

    Args:
        state: The state, with an attribute `epoch`.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state
        self._first: int | None = None  # done when `fit` began
        self._offset = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._first = self._state.epoch

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._first is not None:
            counts_all = epoch >= self._first
            self._offset = 0 if counts_all else self._first
            self._first = None

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._state.epoch = self._offset + epoch + 1


def _end_batches_in_order() -> None:
    callback_list = callback_lists.beginning_callback_list()
    if callback_list is not None:
        callback_lists.call_batch_ends_in_order(callback_list)
