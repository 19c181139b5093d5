"""Lets each rank draw its own random numbers while it trains."""

from __future__ import annotations

import sys
from typing import Any

import keras
import numpy as np

from hvd_keras import basics
from hvd_keras._common.seeds import seed_of_rank
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import models, random_streams
from hvd_keras._keras.step_hook import trace_anew

# An attribute of a model: its steps draw the rank's own numbers.
_IS_TRACED = "_hvd_draws_apart"


def draw_apart(model: Any) -> None:
    """Moves what a beginning `fit` draws from to this rank's own streams.

    What is drawn before it, and after it, stays equal on all ranks.
    """
    fit = keras_calls.running_fit()
    if fit is None or fit.draws_apart or basics.size() == 1:
        return
    fit.draws_apart = True
    fit.at_end.append(random_streams.move_apart(basics.rank()))
    if "tensorflow" in sys.modules:
        from hvd_keras.data import _random_maps

        _random_maps.move_seeds_apart(fit.data, basics.rank())
    # Steps that were traced before have the seeds of all ranks.
    if not vars(model).get(_IS_TRACED):
        vars(model)[_IS_TRACED] = True
        trace_anew(model)


def move_seeds_of(model: Any, moved: list[Any]) -> None:
    """Moves the seeds of a model's layers and metrics apart.

    Args:
        model: The model.
        moved: Seeds that were moved before; it gets the new ones.
    """
    known = {id(each) for each in [*model.weights, *moved]}
    of_metrics = [  # no variables of theirs
        value.state
        for metric in models.given_metrics_of(model)
        for value in vars(metric).values()
        if isinstance(value, keras.random.SeedGenerator)
    ]
    for state in [*model.variables, *of_metrics]:
        if id(state) in known or tuple(state.shape) != (2,):
            continue
        moved.append(state)  # it holds a seed and a count of uses
        seed, count = np.asarray(state.numpy()).tolist()
        state.assign([seed_of_rank(seed, basics.rank()), count])
