"""Compares the ranks' learning rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from hvd_keras import _backends, basics
from hvd_keras._gradients.distributed_class import distributed_parts_of
from hvd_keras._keras import advice, models
from hvd_keras._keras import calls as keras_calls
from hvd_keras._values import agreement
from hvd_keras._values.agreement import Check
from hvd_keras.exceptions import MismatchError
from hvd_keras.process_set import ProcessSet

# The cure if callbacks have done other things on other ranks.
_CURE = (
    "Add `hvd.callbacks.MetricAverageCallback()`, so that all ranks see the "
    "same metrics at the end of an epoch: then callbacks such as "
    "`ReduceLROnPlateau` do the same on all of them. The logs of a batch are "
    "those of the rank: a callback that decides by them must first average "
    "them, by `hvd.allreduce`."
)
# For a script that knows nothing of ranks: its callbacks see the same.
_CURE_IN_FRONT = (
    "Update weights by the model's own optimizer, and set rates by what all "
    "ranks have alike, such as the logs that callbacks get; not by a loss or a "
    "gradient of a step, by an optimizer of another package, by random numbers "
    "or by the time."
)


def cure() -> str:
    """Returns what to do if a rank has changed weights by itself."""
    return _CURE_IN_FRONT if keras_calls.has_front() else _CURE


def cure_of_rates() -> str:
    """Returns what to do if rates differ by rank."""
    return f"{advice.CURE_OF_RATES} {cure()}"


def compare_first(fit: keras_calls.Call, process_set: ProcessSet) -> Check:
    """Warns if the ranks begin with other rates: one of them is broadcast.

    A rank that goes on with a model it has loaded alone may have another one.
    """
    has_begun = any(_num_updates(part) for part in parts_of(fit.model))
    gathered = yield rates_of(fit.model), has_begun
    if any(each for _, each in gathered) or basics.rank() != 0:
        return
    difference = difference_in([rates for rates, _ in gathered])
    if difference is not None:
        advice.tell_of_rates(fit.model, difference)


def _num_updates(optimizer: Any) -> int:
    # Not a variable, with Keras's `gradient_accumulation_steps`.
    return int(keras.ops.convert_to_numpy(optimizer.iterations))


def rates_of(model: Any) -> list[float]:
    """Returns the learning rates that must be equal on all ranks.

    They are those of the optimizers that reduce over all ranks. Schedules
    follow from the number of steps, and are left out.
    """
    rates: list[Any] = [part.learning_rate for part in parts_of(model)]
    read = _backends.current().read
    return [float(read(r)) for r in rates if isinstance(r, keras.Variable)]


def parts_of(model: Any) -> list[Any]:
    """Returns the optimizers of a model that reduce over all ranks."""
    if not isinstance(model, keras.Model):
        return []  # a loop may call callbacks for another object
    return [
        part
        for optimizer in models.optimizers_of(model)
        for part in distributed_parts_of(optimizer)
        if part.hvd_settings.reduce.process_set.size() == basics.size()
    ]


def comparing(rates: list[float]) -> Check:
    """Compares rates over the ranks; returns what `difference_in` says."""
    return difference_in((yield rates))


def refuse(difference: str | None) -> None:
    """Raises if rates differ by more than rounding.

    Raises:
        MismatchError: The ranks have different rates.
    """
    if difference is not None:
        raise MismatchError(
            "All ranks must train with the same learning rate. Otherwise their "
            f"weights drift apart. Received: {difference}. {cure_of_rates()}"
        )


def difference_in(gathered: Sequence[Sequence[float]]) -> str | None:
    """Says which ranks have which rates; None if it is mere rounding."""
    known = [each for each in gathered if each]
    if len({len(each) for each in known}) != 1:
        return None  # other checks tell of different optimizers
    for column in zip(*known, strict=True):
        # Hosts of other kinds may round a schedule in Python differently.
        if np.allclose(column, column[0], rtol=1e-5, atol=0.0, equal_nan=True):
            continue
        texts = [f"{rate:g}" for rate in column]
        ranks = [rank for rank, each in enumerate(gathered) if each]
        return f"the rates {agreement.by_rank(texts, ranks)}"
    return None
