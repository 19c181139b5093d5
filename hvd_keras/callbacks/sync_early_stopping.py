"""The callback that stops all ranks when one of them stops."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from hvd_keras import _native, basics
from hvd_keras._gradients import order_check
from hvd_keras._keras import advice, callback_lists
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras.legacy import ForKeras3
from hvd_keras._values.agreement import Check, together
from hvd_keras.callbacks import _rates
from hvd_keras.callbacks._weights import TrainedWeights, tell_of_different_rates
from hvd_keras.reduce_op import Max

_NAME = "SyncEarlyStopping/epoch"
_BATCH_HOOKS = (
    "on_batch_begin",
    "on_batch_end",
    "on_train_batch_begin",
    "on_train_batch_end",
)


class SyncEarlyStopping(ForKeras3, keras.callbacks.Callback):
    """Stops the training on all ranks when a callback stops it on one.

    Any callback may stop it, by `model.stop_training = True`: `EarlyStopping`,
    `TerminateOnNaN` or your own, at any place in the list of callbacks. All
    ranks stop after the same epoch, so that no rank waits for one that left. If
    a rank stops in the middle of an epoch, all stop after the same batch.

    The ranks ask each other at the beginning and the end of each epoch. With
    `each_batch=True` they also ask after each batch, in one small exchange.
    They do so too if a rank has `TerminateOnNaN`, or a callback that acts on
    batches and is not Keras's.

    With `restore_best_weights=True`, `EarlyStopping` restores the weights of
    the epoch that was best for its rank. Use `MetricAverageCallback`, so that
    it is the same epoch on all ranks.

    `ReduceLROnPlateau` may lower the learning rate on one rank alone, if the
    ranks see different metrics; then their weights would drift apart. So before
    each epoch but the first, the ranks also compare the rates of distributed
    optimizers that reduce over all ranks.

    When training ends, they compare the weights too: a callback may have
    changed a rate, or the weights, by the logs of a batch, which are those of
    the rank. They also do so after each epoch that takes 100 times as long as
    that. Local variables are left out.

    `BroadcastGlobalVariablesCallback` contains this callback; you need it only
    without that one. All ranks that train have it, or none. It acts in `fit`,
    and where you call a `keras.callbacks.CallbackList`.

    Args:
        each_batch: Whether to ask after each batch in any case. Needed if
            something other than a callback stops a rank in the middle of an
            epoch, such as a signal handler or a `train_step`.

    Raises:
        MismatchError: From `fit`, on all ranks: ranks have different learning
            rates or weights.

    Example:

    >>> stopping = keras.callbacks.EarlyStopping("loss", patience=3)
    >>> sync = hvd.callbacks.SyncEarlyStopping()
    >>> model.fit(dataset, callbacks=[stopping, sync])
    """

    def __init__(self, each_batch: bool = False) -> None:
        super().__init__()
        self.each_batch = each_batch

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        stop_together(self.model, each_batch=self.each_batch)


def stop_together(
    model: keras.Model,
    *,
    each_batch: bool = False,
    local_variables: Iterable[Any] = (),
) -> None:
    """Makes the ranks stop together in the training that begins now.

    Args:
        model: The model.
        each_batch: Whether they ask each other after each batch.
        local_variables: What they do not compare, beside those that are local
            for the optimizers.
    """
    callback_list = callback_lists.beginning_callback_list()
    if callback_list is None or basics.size() == 1:
        return
    callbacks = callback_list.callbacks
    stoppers = [each for each in callbacks if isinstance(each, _StopTogether)]
    if not stoppers:
        stoppers = [_StopTogether(callback_list)]
        stoppers[0].set_model(model)
        callback_lists.add_callback(callback_list, stoppers[0])
    stoppers[0].asks_each_batch |= each_batch
    stoppers[0].local_variables += local_variables


class _StopTogether(keras.callbacks.Callback):
    """Comes last in its list, right before Keras looks whether to stop."""

    def __init__(self, callback_list: Any) -> None:
        super().__init__()
        self._list = callback_list
        self.asks_each_batch = False
        self.local_variables: list[Any] = []
        self._is_late = False
        self._is_first_epoch = True
        self._epoch_begin = 0.0
        self._weights: TrainedWeights | None = None
        self._watching: list[order_check.Watch] = []  # what they compare

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._is_first_epoch = True
        fit = keras_calls.running_fit()
        if fit is None:
            together(_NAME, [self._asking()])
        else:
            fit.checks["each_batch"] = self._asking()

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        # Not after the last epoch: a new rate harms no step any more. Not
        # before the first: its first step may broadcast the rate.
        rates = [] if self._is_first_epoch else _rates.rates_of(self.model)
        self._is_first_epoch = False
        checks = [self._stopping(), _rates.comparing(rates)]
        _, difference = together(_NAME, checks)
        _rates.refuse(difference)
        self._watching = [
            each
            for each in self._list.callbacks
            if isinstance(each, order_check.Watch)
            and each.process_set.size() == basics.size()
        ]
        for each in self._watching:
            each.is_led = True
        self._epoch_begin = time.monotonic()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self.asks_each_batch:
            mine = np.array([self._stops()], np.uint8)
            ((stops,),) = _native.core().allreduce(
                "SyncEarlyStopping", [mine], int(Max)
            )
            self._stop(bool(stops))

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        if self._weights is None:
            self._weights = TrainedWeights(self.model, self.local_variables)
        seconds = time.monotonic() - self._epoch_begin
        is_due = self._weights.are_cheap(seconds)
        checks = [check for each in self._watching for check in each.checks()]
        weights = self._weights.comparing(is_due, self._list.callbacks)
        together(_NAME, [*checks, self._stopping(), weights])

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        callback_lists.remove_callback(self._list, self)
        weights = TrainedWeights(self.model, self.local_variables)
        checks = [
            self._stopping(),
            weights.comparing(True, self._list.callbacks),
            _rates.comparing(_rates.rates_of(self.model)),
        ]
        *_, difference = together(_NAME, checks)
        tell_of_different_rates(difference)

    def _asking(self) -> Check:
        of_ranks = yield self.asks_each_batch or any(
            _may_stop_in_an_epoch(each) for each in self._list.callbacks
        )
        self.asks_each_batch = any(of_ranks)
        if self.asks_each_batch:
            callback_lists.call_batch_ends_in_order(self._list)

    def _stops(self) -> bool:
        return bool(self.model.stop_training or self._is_late)

    def _stopping(self) -> Check:
        """Stops this rank if any stops."""
        fit = keras_calls.running_fit()
        is_own = fit is not None and not fit.sums_metrics
        is_own &= any(map(_has_stopped, self._list.callbacks))
        of_ranks = yield self._stops(), is_own
        stopping = [rank for rank, (_, is_own) in enumerate(of_ranks) if is_own]
        if 0 < len(stopping) < len(of_ranks) and basics.rank() == 0:
            advice.tell_of_own_stop(self.model, stopping)
        self._stop(any(stops for stops, _ in of_ranks))

    def _stop(self, stops: bool) -> None:
        # A signal handler may have set it meanwhile. That is too late for the
        # others: they hear of it next time.
        self._is_late = not stops and bool(self.model.stop_training)
        if self._is_late or stops:
            self.model.stop_training = stops


def _has_stopped(callback: Any) -> bool:
    """Whether it has ended the training because of metrics."""
    is_of_metrics = isinstance(callback, keras.callbacks.EarlyStopping)
    return is_of_metrics and bool(callback.stopped_epoch)


def _may_stop_in_an_epoch(callback: Any) -> bool:
    if isinstance(callback, keras.callbacks.TerminateOnNaN):
        return True
    hooks = (getattr(callback, name, None) for name in _BATCH_HOOKS)
    modules = (getattr(hook, "__module__", None) or "" for hook in hooks)
    return any(
        not module.startswith(("keras.", "hvd_keras.")) for module in modules
    )
