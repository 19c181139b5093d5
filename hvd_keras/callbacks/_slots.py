"""Builds the optimizers of a model on ranks that have not done so."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras import objects
from hvd_keras._gradients.distributed_class import unwrapped
from hvd_keras._keras import models
from hvd_keras._keras import names as private
from hvd_keras.exceptions import MismatchError


def build_slots_on_all_ranks(model: keras.Model) -> None:
    """Gives each optimizer the slots it has on any rank. Collective.

    An optimizer without slots on all ranks is left to the first step: it may
    get more variables than those of the model.

    Raises:
        MismatchError: Ranks have different numbers of optimizers.
    """
    optimizers = models.optimizers_of(model)
    plans = objects.allgather_object(
        [_trained_weights(model, optimizer) for optimizer in optimizers],
        name="BroadcastGlobalVariablesCallback/slots",
    )
    counts = [len(plan) for plan in plans]
    if len(set(counts)) > 1:
        raise MismatchError(
            "A model must have the same optimizers on all ranks. Received: "
            f"{counts} of them on ranks 0 to {len(counts) - 1}."
        )
    for optimizer, *places in zip(optimizers, *plans, strict=True):
        built = [each for each in places if each is not None]
        if built and not optimizer.built:
            weights = model.weights
            trained = [weights[index] for index in built[0]]
            optimizer.build(trained or model.trainable_variables)


def _trained_weights(model: keras.Model, optimizer: Any) -> list[int] | None:
    """Returns the places in `model.weights` of what an optimizer trains.

    It is empty if it trains something else, and None if it has no slots yet.
    """
    if not optimizer.built:
        return None
    places = {
        private.identity_of(weight): index
        for index, weight in enumerate(model.weights)
    }
    trained = [
        places.get(private.identity_of(variable))
        for variable in private.trainable_variables_of(unwrapped(optimizer))
    ]
    known = [place for place in trained if place is not None]
    return known if len(known) == len(trained) else []
