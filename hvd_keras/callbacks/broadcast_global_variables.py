"""The callback that starts all ranks from the same state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from hvd_keras import basics
from hvd_keras._gradients import fit_check, model_state
from hvd_keras._keras import advice, callback_lists, models
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras.legacy import ForKeras3
from hvd_keras._keras.step_hook import trace_anew
from hvd_keras._values.agreement import Check, together
from hvd_keras._values.checksums import checksum
from hvd_keras.callbacks._building import build_on_all_ranks, building_slots
from hvd_keras.callbacks._draws import draw_apart, move_seeds_of
from hvd_keras.callbacks._habits import Habits
from hvd_keras.callbacks._states import States
from hvd_keras.callbacks.steps_guard import StepsGuard
from hvd_keras.callbacks.sync_early_stopping import stop_together
from hvd_keras.exceptions import MismatchError
from hvd_keras.variables import broadcast_alike, broadcast_variables

_NAME = "BroadcastGlobalVariablesCallback"


class BroadcastGlobalVariablesCallback(ForKeras3, keras.callbacks.Callback):
    """Gives all ranks the model and the optimizer of `root_rank`.

    It broadcasts when training begins, before the first step: weights, the
    step count, the learning rate, and the optimizer's slots if a rank has any.
    Slots that are made later start equal. All optimizers count that are
    attributes of the model, or in lists or dicts there. A model that its first
    batch would build (a subclass of `keras.Model`, a `Sequential` without an
    input) is built before. Then the ranks compare checksums of all this, and of
    what preprocessing layers have learnt by `adapt`.

    Steps change some weights without a gradient, such as the moving mean and
    variance of `BatchNormalization`, from the rank's own batches. At the end of
    each epoch, before validation, those that differ become their mean over the
    ranks, or what `hvd.set_aggregation` or `aggregation=` of `add_weight` says.
    So all ranks predict and save the same. Callbacks that save without
    validation must come after this one. What nobody says, of layers that are
    not Keras's, is told once by name.

    With equal shares, the mean is that of all samples. The variance is the mean
    of the variances within the ranks' batches, without the variance between
    them. `hvd.SyncBatchNormalization` takes the statistics of the whole batch,
    in training too; they are equal on all ranks and stay as they are.

    Each rank keeps its own metrics, its own sums of gradients that are being
    accumulated, and its own states of seed generators. These states are moved
    apart by rank, once each: ranks may set the same seed, for the same initial
    weights, and must not drop the same units. For the same reason, `fit` moves
    apart what `keras.random`, `tf.random`, torch and random functions behind
    `hvd.shard` draw from. What is drawn before and after `fit` stays equal.

    It contains two other callbacks:

    - `StepsGuard` asks all ranks how many epochs and steps they are about to
      run. Ranks that would leave each other waiting get an error at once.
    - `SyncEarlyStopping`: if a callback stops the training on one rank, all
      ranks stop after the same batch. If a callback has changed the learning
      rate on some ranks only, all get an error before the next epoch. When
      training ends, all get one if their weights differ.

    Args:
        root_rank: The rank whose state all ranks get.
        local_variables: Weights of the model that are neither broadcast nor
            averaged, in addition to those registered as local with the
            optimizer.

    Raises:
        MismatchError: From `fit`, on all ranks: ranks have different models,
            other vocabularies or bins of preprocessing layers, plans that
            `StepsGuard` refuses, different learning rates or, when training
            ends, different weights.

    Example:

    >>> callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    >>> model.fit(dataset, callbacks=callbacks)
    """

    hvd_compares_plans = True

    def __init__(
        self, root_rank: int = 0, local_variables: Iterable[Any] | None = None
    ) -> None:
        super().__init__()
        self.local_variables = list(local_variables or ())
        self.root_rank = root_rank
        self._is_pending = False
        self._is_unaveraged = False
        self._offset_states: list[Any] = []
        self._steps_guard = StepsGuard()
        self._habits = Habits()
        self._states = States()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        model = self.model
        self._steps_guard.set_params(self.params)
        self._steps_guard.set_model(model)
        self._steps_guard.on_train_begin()
        stop_together(model, local_variables=self.local_variables)
        self._habits.on_begin(model)
        self._is_unaveraged = False
        is_built = build_on_all_ranks(
            model, keras_calls.running_fit(), self._begin
        )
        # Otherwise the first step builds the model. `on_train_batch_end` would
        # make Keras wait for each batch. The methods below come as early.
        self._is_pending = not is_built
        draw_apart(model)

    def on_epoch_begin(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._is_unaveraged = True
        if not self._is_pending:
            self._states.on_epoch_begin(self.model, self._local())

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._is_unaveraged = True
        if self._is_pending and batch > 0:
            self._begin(True)
        if not self._habits.is_done:
            self._habits.on_step_begin(self.model, self._local())

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        self._finish_epoch()

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self._finish_epoch()

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._steps_guard.on_train_end()

    def _finish_epoch(self) -> None:
        if self._is_pending:
            self._begin(True)
        if self._is_unaveraged:
            self._is_unaveraged = False
            model, local = self.model, self._local()
            self._habits.on_epoch_end(model, local)
            self._states.on_epoch_end(model, local)

    def _local(self) -> list[Any]:
        return model_state.local_variables(self.model, self.local_variables)

    def _begin(self, is_built: bool) -> bool:
        """Gives the model the state of the root rank, if all have built it."""
        model, local = self.model, self._local()
        variables = model_state.common_variables(model, local)
        check = building_slots(model, is_built, variables)
        are_alike, _ = together(
            f"{_NAME}/variables", [check, _comparing_adapted(model)]
        )
        if are_alike is None:
            return False
        self._is_pending = False
        if are_alike:
            broadcast_alike(variables, self.root_rank)
        else:
            variables = model_state.common_variables(model, local)
            broadcast_variables(variables, self.root_rank)
        if models.finalize(model):
            trace_anew(model)
        equal = model_state.comparing(
            variables, models.adapted_states_of(model)
        )
        checks = {
            "model": _refusing(model, equal),
            "untracked": self._states.on_begin(model),
        }
        fit = keras_calls.running_fit()
        if fit is None or callback_lists.beginning_callback_list() is None:
            together(f"{_NAME}/model", checks.values())
        else:
            fit.checks.update(checks)
        move_seeds_of(model, self._offset_states)
        return True


def _comparing_adapted(model: Any) -> Check:
    """Warns of statistics that ranks have learnt from other rows.

    A layer that only some ranks have adapted gets what these have learnt.
    """
    mine = {
        name: checksum(value)
        for name, value in models.adapted_states_of(model)
        if isinstance(value, np.ndarray) and np.unique(value).size > 1
    }
    of_ranks = yield mine
    differing = [
        name
        for name in mine
        if all(name in theirs for theirs in of_ranks)
        and len({theirs[name] for theirs in of_ranks}) > 1
    ]
    if differing and basics.rank() == 0:
        advice.tell_of_unequal_adaptations(model, ", ".join(differing))


def _refusing(model: Any, equal: Check) -> Check:
    difference = yield from equal
    fit_check.note_as_equal(model, difference is None)
    if difference is not None:
        raise MismatchError(
            "All ranks must have equal models. Call `adapt` of a "
            "preprocessing layer with the same data on all ranks. "
            f"Received: {difference}."
        )
