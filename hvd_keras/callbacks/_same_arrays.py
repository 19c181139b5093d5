"""Sees whether all ranks have given the same rows to `fit`, in any order."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_keras import basics
from hvd_keras._gradients.distributed_class import distributed_parts_of
from hvd_keras._keras import advice, models
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import epochs as keras_epochs
from hvd_keras._values import checksums, row_samples
from hvd_keras._values.row_samples import Sample


def sample_of(model: Any, fit: keras_calls.Call | None) -> Sample | None:
    """Returns what tells the arrays of a beginning `fit` from other ones.

    It is None if nobody knows the arrays behind the data, or if ranks may have
    equal ones: with `steps_per_epoch` each may draw other rows of them, an own
    `train_step` may pick rows, and a process set may train with all rows.
    """
    if fit is None or keras_epochs.is_capped(fit) or may_share(model):
        return None
    return row_samples.sample_of(keras_epochs.arrays_of(fit) or [], fit.data)


def state_of_draws() -> int | None:
    """Returns a checksum of the state of `np.random`; None if it is unused.

    A process that sets no seed has a state of its own. So if it is the same on
    all ranks, they have set equal seeds and drawn equal numbers.
    """
    state: Any = np.random.get_state()
    if not isinstance(state, tuple):  # another generator than NumPy's default
        return None
    _, key, position, *_ = state
    if position == len(key):  # as it is after `seed`
        return None
    return checksums.checksum(np.append(key, np.uint32(position)))


def tell_if_equal(
    model: Any, given: list[tuple[Sample | None, int | None]]
) -> None:
    """Warns, on rank 0, if the samples of all ranks are equal.

    Args:
        model: The model that is trained.
        given: `sample_of` and `state_of_draws` of each rank.
    """
    samples, draws = zip(*given, strict=True)
    if basics.rank() or len(samples) == 1 or samples[0] is None:
        return
    if any(
        sample is None or sample[:2] != samples[0][:2] for sample in samples
    ):
        return
    received = "equal arrays on all ranks"
    if any(sample != samples[0] for sample in samples):
        received = "the same rows on all ranks, in other orders"
    if draws[0] is not None and len(set(draws)) == 1:
        received += ", which have drawn the same numbers from `np.random`"
    advice.tell_of_same_data(model, received)


def may_share(model: Any) -> bool:
    """Whether all ranks may rightly be given the same rows."""
    if models.has_our_strategy(model) or advice.has_own_train_step(model):
        return True
    return any(
        part.hvd_settings.reduce.process_set.size() != basics.size()
        for optimizer in models.optimizers_of(model)
        for part in distributed_parts_of(optimizer)
    )
