"""What hvd_keras needs to know of a `fit` that runs, and of its callbacks.

Like `names.py`, this is the one place for the private names that it
leans on; they are checked when it is imported.

| Name | Used to |
|---|---|
| `Model._initial_epoch` | resume in the middle of a training run |
| `ModelCheckpoint._save_model` | save on one rank, for all of them |
| `CallbackList._async_train` | stop all ranks after the same batch |
| `EpochIterator.data_adapter` | know how many batches a rank has |
| `DataAdapter.shuffle`, `py_dataset` | keep an order equal on all ranks |
| `EpochIterator.catch_stop_iteration` | end an epoch on torch |
| `x`, `steps_per_epoch`, `epoch_iterator` in `fit` | the same |
| `self` in `CallbackList.on_train_begin` | act after all other callbacks |
"""

from __future__ import annotations

import inspect
import math
import sys
import types
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._keras.names import require

_FIT = inspect.unwrap(keras.Model.fit).__code__
_CALLS = frozenset((_FIT, inspect.unwrap(keras.Model.evaluate).__code__))
_TRAIN_BEGIN = inspect.unwrap(
    keras.callbacks.CallbackList.on_train_begin
).__code__


def running_calls() -> list[Any]:
    """Returns the frames of Keras's `fit` and `evaluate`, innermost first."""
    frames = []
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code in _CALLS:
            frames.append(frame)
        frame = frame.f_back
    return frames


def is_caller(call: Any) -> bool:
    """Whether `call` is the innermost of `running_calls`."""
    calls = running_calls()
    return bool(calls) and calls[0] is call


def running_fit() -> Any | None:
    """Returns the frame of the innermost `fit`, unless `evaluate` runs."""
    calls = running_calls()
    return calls[0] if calls and calls[0].f_code is _FIT else None


def steps_per_epoch_of(fit: Any) -> int | None:
    """Returns the argument of a running `fit`."""
    steps: int | None = fit.f_locals["steps_per_epoch"]
    return steps


def num_batches_of(fit: Any) -> float | None:
    """Returns how many batches the data of a running `fit` has.

    None where nobody knows, infinity where it has no end.
    """
    data = fit.f_locals["x"]
    tf = sys.modules.get("tensorflow")  # where it is not, there are no datasets
    if tf is not None and isinstance(data, tf.data.Dataset):
        cardinality = int(data.cardinality().numpy())
        if cardinality == tf.data.INFINITE_CARDINALITY:
            return math.inf
    adapter = require(fit.f_locals["epoch_iterator"], "data_adapter")
    num_batches: int | None = adapter.num_batches
    return num_batches


def keep_order(data: Any) -> None:
    """Keeps a running `fit` from shuffling the batches of a `PyDataset`.

    Keras does so on each rank apart, unless `fit` gets `shuffle=False`. Where
    the data have several workers it has done so by now.
    """
    fit = running_fit()
    epochs = None if fit is None else fit.f_locals.get("epoch_iterator")
    adapter: Any = getattr(epochs, "data_adapter", None)
    if getattr(adapter, "py_dataset", None) is data:
        require(adapter, "shuffle")
        adapter.shuffle = False


def let_decide(fit: Any, decide: Callable[[int], int]) -> bool:
    """Lets `decide` end the epochs of a running `fit`, where that is on torch.

    There, and only there, a batch is taken before the train function is
    called. `decide` gets 1, or 0 where there is no batch left, and returns 0
    to end the epoch, else 1.
    """
    if keras.backend.backend() != "torch":
        return False
    epochs = fit.f_locals["epoch_iterator"]
    base = type(epochs)

    def __next__(self: Any) -> Any:  # noqa: N807
        try:
            item = base.__next__(self)
        except StopIteration:
            decide(0)
            raise
        if decide(1):
            return item
        with require(self, "catch_stop_iteration")():
            raise StopIteration  # so that the data begin anew
        raise StopIteration

    epochs.__class__ = type(base.__name__, (base,), {"__next__": __next__})
    return True


def beginning_callback_list() -> Any | None:
    """Returns the list whose callbacks hear now that training begins."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is _TRAIN_BEGIN:
            return frame.f_locals["self"]
        frame = frame.f_back
    return None


def remove_callback(callback_list: Any, callback: Any) -> None:
    """Removes a callback from a list that may be calling its callbacks."""
    # Another list, so that the one that is being walked stays as it is.
    callback_list.callbacks = [
        each for each in callback_list.callbacks if each is not callback
    ]


def call_batch_ends_in_order(callback_list: Any) -> None:
    """Keeps Keras from calling `on_train_batch_end` in other threads.

    It does not do so anyway for the callbacks of a list that have that hook;
    but for a single one that is no list, and for those that are added later.
    """
    require(callback_list, "_async_train")
    callback_list._async_train = False


def set_initial_epoch(model: Any, epoch: int | None) -> None:
    """Makes a `fit` that begins start with `epoch`; None: with its own."""
    model._initial_epoch = epoch


class CheckpointOfAllRanks(keras.callbacks.ModelCheckpoint):
    """Keras's ModelCheckpoint, which leaves it to `hvd_save` to save."""

    def hvd_save(self, save: Callable[[], None]) -> None:
        """Calls `save`, or lets another rank do so."""
        raise NotImplementedError

    def _save_model(self, epoch: int, batch: int | None, logs: Any) -> None:
        save = super()._save_model
        self.hvd_save(lambda: save(epoch, batch, logs))


def check_names() -> None:
    """Raises ImportError if a private name is gone or has changed."""
    require(
        keras.callbacks.ModelCheckpoint,
        "_save_model",
        ["self", "epoch", "batch", "logs"],
    )
    for name in ("x", "steps_per_epoch", "epoch_iterator"):
        if name not in _FIT.co_varnames:
            raise ImportError(
                f"hvd_keras leans on the variable `{name}` of Keras's `fit`, "
                f"which is missing in Keras {keras.__version__}."
            )


check_names()
