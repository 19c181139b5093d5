"""Builds the models of all ranks, and their optimizers, before the first step.

Models are built here on TensorFlow alone: elsewhere Keras has done it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable
from typing import Any

import keras

from hvd_keras import _backends, basics
from hvd_keras._gradients import fit_check
from hvd_keras._gradients.distributed_class import unwrapped
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import models
from hvd_keras._keras import names as private
from hvd_keras._keras.step_hook import StepHook
from hvd_keras._values.agreement import Check, differing
from hvd_keras.exceptions import MismatchError

_logger = logging.getLogger(__name__)

# Gets whether this rank has built the model; says whether all have.
Begin = Callable[[bool], bool]


def build_on_all_ranks(
    model: keras.Model, fit: keras_calls.Call | None, begin: Begin
) -> bool:
    """Builds the model on all ranks, and begins then. Collective.

    It learns the shapes from the description of the data. If that says too
    little, it builds the model with the first batch, right before the first
    step.

    Args:
        model: The model that is about to train.
        fit: The running call of `fit`; None: another loop calls the callbacks.
        begin: Called on all ranks together.

    Returns:
        Whether it has begun, or will do so. The first step alone builds a model
        of one rank, or in a loop other than `fit`.
    """
    if begin(models.is_fully_built(model)):
        return True
    is_alone = basics.size() == 1
    if is_alone or fit is None or keras.backend.backend() != "tensorflow":
        return False
    from hvd_keras._keras import tensorflow_build

    if not _build(model, tensorflow_build.spec_of_batches(fit), begin):
        _BuildFirst(model, fit, begin)
    return True


def build_by_data(model: keras.Model, fit: keras_calls.Call) -> bool:
    """Builds the model by the shapes of the data, on this rank alone.

    Returns:
        Whether it is built.
    """
    is_unbuilt = not models.is_fully_built(model)
    if is_unbuilt and keras.backend.backend() == "tensorflow":
        from hvd_keras._keras import tensorflow_build

        spec = tensorflow_build.spec_of_batches(fit)
        tensorflow_build.call_with_symbols(model, spec)
    return models.is_fully_built(model)


class _BuildFirst(StepHook):
    """Builds the model with the first batch, then gives it that batch."""

    def __init__(
        self, model: keras.Model, fit: keras_calls.Call, begin: Begin
    ) -> None:
        # The others come first: they may end the epoch before the first step.
        super().__init__(model, fit, innermost=True)
        self._begin: Begin | None = begin

    def step(self, batches: Iterable[Any], *state: Any) -> Any:
        if self._begin is not None:
            begin, self._begin = self._begin, None
            num_steps = self.model.steps_per_execution
            first = list(itertools.islice(batches, num_steps))
            _build(self.model, first[0], begin, must_succeed=True)
            batches = iter(first)
        return self.train_function(*state, batches)


def _build(
    model: keras.Model, batch: Any, begin: Begin, *, must_succeed: bool = False
) -> bool:
    """Builds the model, and begins if that succeeded on all ranks."""
    from hvd_keras._keras import tensorflow_build

    if not models.is_fully_built(model):
        tensorflow_build.call_with_symbols(model, batch)
    if begin(models.is_fully_built(model)):
        return True
    # The ranks compare their gradients in it, so all trace it. They do not
    # compare their weights before the broadcast.
    fit_check.note_as_equal(model)
    try:
        tensorflow_build.trace_step(model, batch)
        is_built = True
    except Exception as error:
        if must_succeed:
            raise
        _logger.debug("%r was not built by its step: %r", model.name, error)
        is_built = False
    return begin(is_built)


def building_slots(
    model: keras.Model, is_built: bool, variables: Iterable[Any]
) -> Check:
    """Gives each optimizer the slots it has on any rank.

    An optimizer without slots on all ranks is left to the first step: it may
    get more variables than those of the model.

    It does nothing if `is_built` is false on a rank.

    Returns:
        Whether all ranks have `variables` of the same shapes and dtypes; None:
        some have not built the model.

    Raises:
        MismatchError: Ranks have different numbers of optimizers.
    """
    optimizers = models.optimizers_of(model)
    plan = [_trained_weights(model, optimizer) for optimizer in optimizers]
    infos = map(_backends.current().describe, variables)
    values = yield from differing(
        [plan, [[info.dtype, info.shape] for info in infos]]
        if is_built
        else None
    )
    if values is None:
        return is_built or None
    if any(each is None for each, _ in values):
        return None
    plans = [each for (each, _), _ in values]
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
    return False


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
