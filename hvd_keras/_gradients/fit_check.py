"""Refuses a `fit` that the ranks would begin with different models."""

from __future__ import annotations

from typing import Any

from hvd_keras._gradients import model_state
from hvd_keras._gradients.distributed_class import distributed_parts_of
from hvd_keras._gradients.start_check import unequal_start
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import models


def note_as_equal(model: Any) -> None:
    """Notes that the ranks need not compare a model in its next step."""
    for optimizer in models.optimizers_of(model):
        for part in distributed_parts_of(optimizer):
            part.hvd_start_check.note()


def never_compare(optimizer: Any) -> None:
    """Lets ranks begin to train different weights with an optimizer."""
    for part in distributed_parts_of(optimizer):
        part.hvd_start_check.is_off = True


def check_beginning_fit(callback_list: Any) -> None:
    """Compares the ranks' models, once, after the callbacks have begun.

    They have nothing to compare if a callback has broadcast the model. A model
    that is not built is compared in its first step.

    Raises:
        MismatchError: The models differ; on all ranks.
    """
    if keras_calls.running_fit() is None:
        return
    model = callback_list.model
    due = [
        part.hvd_settings.reduce.process_set
        for optimizer in models.optimizers_of(model)
        for part in distributed_parts_of(optimizer)
        if part.hvd_start_check.is_due()
    ]
    if not due or not models.is_fully_built(model):
        return
    note_as_equal(model)
    process_set = due[0]
    if not process_set.included():
        return
    difference = model_state.difference(
        "DistributedOptimizer/start",
        model_state.common_variables(model, model_state.local_variables(model)),
        models.adapted_states_of(model),
        process_set=process_set,
    )
    if difference is not None:
        raise unequal_start(difference)
