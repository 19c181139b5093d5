"""Compares the ranks' learning rates, within an exchange that others make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from hvd_keras import _backends, basics, objects
from hvd_keras._gradients.distributed_class import distributed_parts_of
from hvd_keras._keras import models
from hvd_keras._values import agreement, checksums
from hvd_keras.exceptions import MismatchError

_NUM_DIGITS = 4  # bytes of a checksum
NUM_BYTES = 2 * _NUM_DIGITS  # of a code

# The cure if callbacks have done other things on other ranks.
CURE = (
    "Add `hvd.callbacks.MetricAverageCallback()`, so that all ranks see the "
    "same metrics at the end of an epoch: then callbacks such as "
    "`ReduceLROnPlateau` do the same on all of them. The logs of a batch are "
    "those of the rank: a callback that decides by them must first average "
    "them, by `hvd.allreduce`."
)


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


def code_of(values: Sequence[float]) -> list[int]:
    """Returns bytes whose largest values over the ranks tell if values differ.

    These are the bytes of a checksum, and 255 less each of them. Without values
    they are 0, which changes no largest value.
    """
    if not values:
        return [0] * NUM_BYTES
    number = checksums.checksum(np.array(values, np.float64))
    digits = list(number.to_bytes(_NUM_DIGITS, "little"))
    return [*digits, *(255 - digit for digit in digits)]


def are_equal(largest: Sequence[Any]) -> bool:
    """Whether the ranks had equal values, by the largest bytes of their codes.

    Ranks that have sent none do not count.
    """
    sums = {
        int(digit) + int(rest)
        for digit, rest in zip(
            largest[:_NUM_DIGITS], largest[_NUM_DIGITS:], strict=True
        )
    }
    return sums in ({0}, {255})


def refuse_different(rates: list[float]) -> None:
    """Raises on all ranks if their rates differ by more than rounding.

    All ranks call it.

    Raises:
        MismatchError: The ranks have different rates.
    """
    gathered = objects.allgather_object(rates, name="SyncEarlyStopping/rates")
    difference = difference_in(gathered)
    if difference is not None:
        raise MismatchError(
            "All ranks must train with the same learning rate. Otherwise their "
            f"weights drift apart. Received: {difference}. {CURE}"
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
