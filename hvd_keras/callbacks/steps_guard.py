"""The callback that makes all ranks take equally many steps."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from hvd_keras import _native, basics
from hvd_keras._common import log
from hvd_keras._gradients import order_check
from hvd_keras._keras import callback_lists, resume
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import epochs as keras_epochs
from hvd_keras._keras.legacy import ForKeras3
from hvd_keras._keras.step_hook import StepHook, remove_step_hooks
from hvd_keras._values.agreement import Check, listed, together
from hvd_keras.callbacks._same_arrays import (
    sample_of,
    state_of_draws,
    tell_if_equal,
)
from hvd_keras.data.position import handle_of
from hvd_keras.exceptions import MismatchError
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Min, Sum

_GUARDS = {"StepsGuard", "BroadcastGlobalVariablesCallback"}


class StepsGuard(ForKeras3, keras.callbacks.Callback):
    """Makes all ranks take the same number of steps, or says why it cannot.

    A rank with more batches than its peers would wait for them in its next
    step. If the numbers of steps are known and differ, the ranks get an error
    before the first step. If the data have an unknown length (a generator, a
    filtered `tf.data.Dataset`), the ranks ask each other before each step
    whether all have a batch. They end the epoch together when the first rank
    has none; the batches that others still have are dropped. That costs one
    small exchange a step; rank 0 warns when batches are dropped for the first
    time. To use all data, share them out with `hvd.shard`: its `policy` decides
    about the last rows. If all ranks have given the same arrays to `fit`, rank
    0 logs a warning.

    `BroadcastGlobalVariablesCallback` contains this callback; you need it only
    without that one. All ranks that train have it, or none.

    Raises:
        MismatchError: From `fit`, on all ranks: ranks have different numbers
            of epochs or of steps per epoch, begin with different epochs, have
            different callbacks of hvd_keras, or only some of them know their
            number of steps.

    Example:

    >>> model.fit(dataset, callbacks=[hvd.callbacks.StepsGuard()])
    """

    hvd_compares_plans = True

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        fit = keras_calls.running_fit()
        remove_step_hooks(self.model, fit)  # of a `fit` that raised
        must_vote = None if fit is None else fit.must_vote
        if must_vote is None:
            callback_list = callback_lists.beginning_callback_list()
            callbacks = getattr(callback_list, "callbacks", [])
            plan = _plan(self.model, callbacks, self.params or {}, fit)
            shared = order_check.find_shared(fit, global_process_set)
            checks = [_comparing(self.model, plan), shared]
            (must_vote, _), _ = together("StepsGuard/plan", checks)
        if fit is None:
            return
        fit.checks["first_epoch"] = _comparing_first_epochs(fit)
        if basics.size() == 1 or not must_vote or _ends_together(fit):
            return
        smallest = _SmallestCount()
        if not keras_epochs.let_decide(fit, smallest):
            _Vote(self.model, fit).smallest = smallest

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        remove_step_hooks(self.model)


def compare_plans(fit: keras_calls.Call, process_set: ProcessSet) -> Check:
    """Compares what ranks are about to run, also without the callback."""
    if process_set.size() == basics.size():
        epochs = fit.arguments.get("epochs", 1)
        params = {"epochs": epochs, "steps": fit.epochs.num_batches}
        plan = _plan(fit.model, fit.callbacks, params, fit)
        plan["guards"] = not _GUARDS.isdisjoint(plan["callbacks"])
        fit.must_vote, fit.has_equal_steps = yield from _comparing(
            fit.model, plan
        )


def _comparing(model: Any, plan: dict[str, Any] | None) -> Check:
    """Returns whether ranks must vote; None: none of them has the callback.

    Behind it: whether none has it, and all are sure to take equal steps.
    """
    plans = yield plan
    are_guarded = [
        plan is not None and plan.get("guards", True) for plan in plans
    ]
    if not any(are_guarded):
        if None in plans:  # not all ranks reduce gradients
            return None, False
        are_known = _check_known(plans)
        tell_if_equal(model, [plan["given"] for plan in plans])
        return None, are_known
    plans = [
        plan if is_guarded else {"callbacks": []}
        for plan, is_guarded in zip(plans, are_guarded, strict=True)
    ]
    _check_equal(plans)
    tell_if_equal(model, [plan["given"] for plan in plans])
    return _must_vote(plans), False


def _check_known(plans: list[dict[str, Any]]) -> bool:
    """Returns whether all ranks know their numbers of steps.

    Raises:
        MismatchError: They are sure to take other numbers.
    """
    if any(plan["is_capped"] or plan["steps"] is None for plan in plans):
        return False
    _check_equal([{"steps": plan["steps"]} for plan in plans])
    return True


def _comparing_first_epochs(fit: keras_calls.Call) -> Check:
    epochs = yield resume.first_epoch_of(fit)
    if len(set(epochs)) > 1:
        raise MismatchError(
            "All ranks must begin with the same epoch (`initial_epoch` of "
            "`fit`). Otherwise they run different numbers of epochs. "
            f"Received: {epochs} on ranks 0 to {len(epochs) - 1}."
        )


class _Vote(StepHook):
    """Lets all ranks take a step, or none."""

    smallest: _SmallestCount

    def step(self, batches: Iterable[Any], *state: Any) -> Any:
        # Take the batches here. In the graph, all ops would run once more at
        # the end of the data.
        num_steps = self.model.steps_per_execution
        mine = list(itertools.islice(batches, num_steps))
        count = self.smallest(len(mine))
        if not count:
            raise StopIteration
        return self.train_function(*state, iter(mine[:count]))


class _SmallestCount:
    """Finds the smallest of the ranks' counts of batches, at each step.

    Where counts differ for the first time, rank 0 warns that batches are lost.
    """

    def __init__(self) -> None:
        self._num_batches = 0  # of the epoch
        self._has_told = False

    def __call__(self, count: int) -> int:
        mine = np.array([count, -count], np.int32)
        (least,) = _native.core().allreduce("StepsGuard/vote", [mine], int(Min))
        smallest, largest = int(least[0]), -int(least[1])
        self._num_batches += smallest
        if largest > smallest and not self._has_told:
            self._has_told = True
            self._tell(count, smallest)
        if not smallest:
            self._num_batches = 0
        return smallest

    def _tell(self, count: int, smallest: int) -> None:
        counts = np.zeros(basics.size(), np.int32)
        counts[basics.rank()] = count
        (counts,) = _native.core().allreduce(
            "StepsGuard/counts", [counts], int(Sum)
        )
        if basics.rank():
            return
        short, long = (
            listed(np.flatnonzero(which).tolist())
            for which in (counts == smallest, counts > smallest)
        )
        log.mistake(
            f"`fit` ended an epoch after {self._num_batches} batches, since "
            f"the data of {short} end there. Those of {long} go on: what is "
            "left is not trained on. Give all ranks equally many batches, or "
            "deal rows out with `hvd.shard`, which drops none. Said once; "
            "later epochs may lose batches too."
        )


def _plan(
    model: keras.Model,
    callbacks: list[Any],
    params: dict[str, Any],
    fit: keras_calls.Call | None,
) -> dict[str, Any]:
    """Returns what this rank is about to run."""
    is_capped = fit is not None and keras_epochs.is_capped(fit)
    num_batches = None
    if fit is not None and is_capped:
        num_batches = keras_epochs.num_batches_of(fit)
    return {
        "steps": params.get("steps"),
        "epochs": params.get("epochs"),
        "num_batches": num_batches,
        "is_capped": is_capped,
        "callbacks": _names_of_ours(callbacks),
        "given": (sample_of(model, fit), state_of_draws()),
    }


def _names_of_ours(callbacks: list[Any]) -> list[str]:
    """Names the callbacks that are, or derive from, those of hvd_keras."""
    return [
        ours[0]
        for callback in callbacks
        if (
            ours := [
                each.__name__
                for each in type(callback).__mro__
                if each.__module__.startswith("hvd_keras.")
            ]
        )
    ]


def _check_equal(plans: list[dict[str, Any]]) -> None:
    for key, words, remedy in (
        (
            "callbacks",
            "callbacks of hvd_keras, in the same order",
            "; those that write files write on rank 0 only.",
        ),
        ("epochs", "number of epochs", "."),
        (
            "steps",
            "number of steps per epoch",
            "; share the data out with `hvd.shard`, or pass "
            "`steps_per_epoch` on all ranks.",
        ),
    ):
        values = [plan.get(key) for plan in plans]
        if any(value != values[0] for value in values):
            shown = ("unknown" if v is None else str(v) for v in values)
            raise MismatchError(
                f"All ranks must have the same {words}. Otherwise they wait "
                f"for each other for ever. Received: [{', '.join(shown)}] on "
                f"ranks 0 to {len(values) - 1}{remedy}"
            )


def _ends_together(fit: keras_calls.Call) -> bool:
    """Whether the ranks end each epoch together without asking each other."""
    handle = handle_of(fit.data)
    if handle is None or keras_epochs.is_capped(fit):
        return False
    return handle.upcoming().deal.policy != "join"


def _must_vote(plans: list[dict[str, Any]]) -> bool:
    """Whether one rank may run out of data before the others."""
    steps, epochs = plans[0]["steps"], plans[0]["epochs"]
    if steps is None:
        return True
    if not any(plan["is_capped"] for plan in plans):
        return False
    lengths = [plan["num_batches"] for plan in plans]
    known = [length for length in lengths if length is not None]
    is_enough = steps * (epochs or 1) <= min(known, default=math.inf)
    if len(known) < len(lengths) and is_enough:
        return True
    if is_enough or all(length == lengths[0] for length in lengths):
        return False
    raise MismatchError(
        "With `steps_per_epoch`, all ranks must have the same number of "
        "batches, or enough of them for all epochs: an epoch goes on "
        f"where the last one ended. Received: {lengths} batches (None: "
        f"unknown) on ranks 0 to {len(lengths) - 1} for {epochs} epochs of "
        f"{steps} steps; share the data out with `hvd.shard`, or repeat "
        "them endlessly."
    )
