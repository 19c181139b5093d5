"""Begins a `fit` at a later epoch, or in the middle of one.

| Private name | Used to |
|---|---|
| `Model._initial_epoch` | begin at a later epoch |
| `EpochIterator._interrupted_warning` | be silent about the end of that epoch |
| `EpochIterator._num_batches` | forget how short that epoch was |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._keras.calls import Call
from hvd_keras._keras.lookup import require


def set_initial_epoch(model: Any, epoch: int | None) -> None:
    """Makes a beginning `fit` start at `epoch`; None: at its own first one."""
    model._initial_epoch = epoch


def first_epoch_of(fit: Call) -> int | None:
    """Returns the epoch with which a `fit` of now begins; None: with none."""
    initial = fit.arguments.get("initial_epoch") or 0
    first = int(fit.model._initial_epoch or initial)
    return first if first < fit.arguments.get("epochs", 1) else None


def begin_epoch_at(
    fit: Call,
    first_batch: int,
    *,
    skips: bool = False,
    limit: int | None = None,
) -> Callable[[], None]:
    """Makes the first epoch of a beginning `fit` count from `first_batch` on.

    Args:
        fit: The running call; its callbacks have not all begun.
        first_batch: The number of the first batch that trains.
        skips: Whether the data still have the batches before that one.
        limit: The number of batches of an epoch, if `fit` was told.

    Returns:
        A function to call when that epoch has ended.
    """
    epochs = fit.epochs
    num_batches = epochs._num_batches  # may be None
    base = type(epochs)
    is_running, is_first = True, True
    # Keras takes the batches of torch itself, and has then counted them.
    takes = keras.backend.backend() == "torch"
    offset = 0 if skips and takes else first_batch

    def __next__(self: Any) -> Any:  # noqa: N807
        nonlocal is_first
        item = base.__next__(self)
        if not is_running:
            return item
        if is_first and skips:
            item = _without(first_batch, item, lambda: base.__next__(self))
        is_first = False
        # The number of its first batch; that of its last, from Keras 3.12 on.
        *numbers, batches = item
        if limit is not None and numbers[0] + offset >= limit:
            raise StopIteration
        return (*(number + offset for number in numbers), batches)

    def _without(num_skipped: int, item: Any, take: Callable[[], Any]) -> Any:
        batches = item[-1]
        if takes:
            for _ in range(num_skipped // len(batches)):
                item = take()
            return item
        for _ in range(num_skipped):
            next(batches)
        return item

    def end() -> None:
        nonlocal is_running
        if is_running:
            is_running = False
            epochs.__dict__.pop("_interrupted_warning", None)
            epochs._num_batches = num_batches

    epochs.__class__ = type(base.__name__, (base,), {"__next__": __next__})
    require(epochs, "_interrupted_warning")
    epochs._interrupted_warning = lambda: None
    return end
