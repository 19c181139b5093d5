"""What the ranks of a `fit` compare before its first step, in two exchanges.

They make the first as soon as `fit` has its data. The second follows when all
callbacks have begun: they may have changed the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_keras import basics
from hvd_keras._gradients import model_state
from hvd_keras._gradients.distributed_class import distributed_parts_of
from hvd_keras._gradients.loss_means import distributed_part_of
from hvd_keras._gradients.start_check import unequal_start
from hvd_keras._keras import advice, models
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras.hooks import Hooks
from hvd_keras._values.agreement import Check, by_rank, together
from hvd_keras.exceptions import MismatchError
from hvd_keras.process_set import ProcessSet, has_own_sets

# Make the checks of the first exchange, of a `fit` and the ranks that train
# together. They judge in the order in which they were added.
at_data: Hooks[Callable[[keras_calls.Call, ProcessSet], Check]] = Hooks()


def note_as_equal(model: Any, is_equal: bool = True) -> None:
    """Notes whether the ranks need not compare a model in its next step."""
    for optimizer in models.optimizers_of(model):
        for part in distributed_parts_of(optimizer):
            part.hvd_start_check.note(is_equal)


def never_compare(optimizer: Any) -> None:
    """Lets ranks begin to train different weights with an optimizer."""
    for part in distributed_parts_of(optimizer):
        part.hvd_start_check.is_off = True


def compare_data(fit: keras_calls.Call) -> None:
    """Makes the first exchange of a `fit`, if its ranks train together."""
    part = distributed_part_of(fit.model)
    if fit.method != "fit":
        return
    if part is None:
        # Others may have a distributed optimizer, and compare.
        if _meets_others(fit):
            others = [_nothing() for _ in [*at_data, "naming"]]
            together("fit/data", [_comparing_optimizers(fit), *others])
        return
    process_set = part.hvd_settings.reduce.process_set
    if process_set.included():
        checks = [make(fit, process_set) for make in at_data]
        checks.append(part.hvd_reducer.naming())
        first = _comparing_optimizers(fit, part)
        together("fit/data", [first, *checks], process_set)


def _meets_others(fit: keras_calls.Call) -> bool:
    """Whether all ranks of the job make this `fit`."""
    return not has_own_sets() and any(
        getattr(callback, "hvd_compares_plans", False)
        for callback in fit.callbacks
    )


def _comparing_optimizers(fit: keras_calls.Call, part: Any = None) -> Check:
    optimizer = getattr(fit.model, "optimizer", None)
    names = yield None if part else type(optimizer).__name__
    if None in names and any(names):
        shown = [
            f"the plain optimizer {name}" if name else "a distributed one"
            for name in names
        ]
        raise MismatchError(
            "All ranks must train with a distributed optimizer, or none: make "
            "it on all of them, `hvd.DistributedOptimizer(optimizer)`, not "
            "under `if hvd.rank() == ...`. Received: "
            f"{by_rank(shown, range(len(shown)))}."
        )


def _nothing() -> Check:
    yield None


def compare_models(callback_list: Any) -> None:
    """Makes the second exchange of a `fit`, of what callbacks hand over.

    The ranks compare their models, once, unless a callback has broadcast them.
    A model that is not built is compared in its first step.
    """
    fit, model = keras_calls.running_fit(), callback_list.model
    if fit is None:
        return
    checks, fit.checks = fit.checks, {}
    due = [
        part.hvd_settings.reduce.process_set
        for optimizer in models.optimizers_of(model)
        for part in distributed_parts_of(optimizer)
        if part.hvd_start_check.is_due()
    ]
    if (
        due
        and basics.is_initialized()
        and basics.rank() == 0
        and basics.size() != 1
        and not keras_calls.has_front()
    ):
        advice.tell_of_own_statistics(model)
    if due and "model" not in checks and models.is_fully_built(model):
        if not due[0].included():
            note_as_equal(model)
        elif due[0].size() == basics.size():
            checks = {"model": _comparing(model, due[0]), **checks}
        else:
            together("fit/model", [_comparing(model, due[0])], due[0])
    together("fit/begin", checks.values())


def _comparing(model: Any, process_set: ProcessSet) -> Check:
    difference = yield from model_state.comparing(
        model_state.common_variables(model, model_state.local_variables(model)),
        models.adapted_states_of(model),
        process_set,
    )
    if difference is not None:
        raise unequal_start(difference)
    note_as_equal(model)
