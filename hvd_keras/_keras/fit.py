"""What hvd_keras needs to know of a `fit` that runs, and of its callbacks.

Importing this wraps `fit`, `evaluate` and `predict` of `keras.Model`, so that
their calls are known where callbacks, data and train functions are called.

Like `names.py`, this is the one place for the private names that it
leans on; they are checked when it is imported.

| Name | Used to |
|---|---|
| `Model.fit`, `evaluate`, `predict` (public, wrapped) | know what runs |
| `CallbackList.on_train_begin` (public, wrapped) | act after other callbacks |
| `EpochIterator.__init__` (wrapped) | know the data of a `fit` |
| `EpochIterator.steps_per_epoch` | know how many batches are asked for |
| `EpochIterator.data_adapter` | know how many batches a rank has |
| `DataAdapter.shuffle`, `py_dataset` | keep an order equal on all ranks |
| `EpochIterator.catch_stop_iteration` | end an epoch on torch |
| `Model._initial_epoch` | resume in the middle of a training run |
| `ModelCheckpoint._save_model` | save on one rank, for all of them |
| `CallbackList._async_train` | stop all ranks after the same batch |
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import math
import sys
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._keras.lookup import private_module, require

_EpochIterator: Any = private_module("trainers.epoch_iterator").EpochIterator


class Call:
    """A call of `fit`, `evaluate` or `predict` that runs."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.epochs: Any = None  # the first EpochIterator that it has made
        self.data: Any = None  # what that was made of

    def end(self) -> None:
        """Lets the data go: who keeps the call does not keep them."""
        self.epochs = self.data = None


# Those of this thread, innermost first.
_running: contextvars.ContextVar[tuple[Call, ...]] = contextvars.ContextVar(
    "_running", default=()
)
_beginning: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "_beginning", default=None
)
_at_end_of_fit: list[Callable[[Any], None]] = []


def running_calls() -> tuple[Call, ...]:
    """Returns the calls of Keras's methods that run, innermost first."""
    return _running.get()


def is_caller(call: Call) -> bool:
    """Whether `call` is the innermost of `running_calls`."""
    calls = _running.get()
    return bool(calls) and calls[0] is call


def running_fit() -> Call | None:
    """Returns the innermost call, if that is one of Keras's `fit`."""
    for call in _running.get()[:1]:
        if call.method == "fit" and call.epochs is not None:
            return call
    return None


def call_at_end_of_fit(function: Callable[[Any], None]) -> None:
    """Calls `function(model)` whenever a `fit` has ended or raised."""
    _at_end_of_fit.append(function)


def is_capped(fit: Call) -> bool:
    """Whether a running `fit` was told how many steps an epoch has."""
    return bool(fit.epochs.steps_per_epoch)


def num_batches_of(fit: Call) -> float | None:
    """Returns how many batches the data of a running `fit` has.

    None where nobody knows, infinity where it has no end.
    """
    tf = sys.modules.get("tensorflow")  # where it is not, there are no datasets
    if tf is not None and isinstance(fit.data, tf.data.Dataset):
        cardinality = int(fit.data.cardinality().numpy())
        if cardinality == tf.data.INFINITE_CARDINALITY:
            return math.inf
    adapter = require(fit.epochs, "data_adapter")
    num_batches: int | None = adapter.num_batches
    return num_batches


def keep_order(data: Any) -> None:
    """Keeps a running `fit` from shuffling the batches of a `PyDataset`.

    Keras does so on each rank apart, unless `fit` gets `shuffle=False`. Where
    the data have several workers it has done so by now.
    """
    fit = running_fit()
    if fit is None:
        return
    adapter = require(fit.epochs, "data_adapter")
    if getattr(adapter, "py_dataset", None) is data:
        require(adapter, "shuffle")
        adapter.shuffle = False


def let_decide(fit: Call, decide: Callable[[int], int]) -> bool:
    """Lets `decide` end the epochs of a running `fit`, where that is on torch.

    There, and only there, a batch is taken before the train function is
    called. `decide` gets 1, or 0 where there is no batch left, and returns 0
    to end the epoch, else 1.
    """
    if keras.backend.backend() != "torch":
        return False
    base = type(fit.epochs)

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

    fit.epochs.__class__ = type(base.__name__, (base,), {"__next__": __next__})
    return True


def beginning_callback_list() -> Any | None:
    """Returns the list whose callbacks hear now that training begins."""
    return _beginning.get()


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
    require(_EpochIterator, "catch_stop_iteration", ["self"])
    if "x" not in inspect.signature(_EpochIterator).parameters:
        raise ImportError(
            "hvd_keras leans on the parameter `x` of Keras's `EpochIterator`, "
            f"which is missing in Keras {keras.__version__}."
        )


def _wrap_everything() -> None:
    """Wraps what tells of a running `fit`; a second call does nothing.

    A method that somebody else has put in front of Keras's is wrapped as well
    as Keras's: each may be put back, or called, without the other.
    """
    for method in ("fit", "evaluate", "predict"):
        for owner in keras.Model.__mro__:
            if method in vars(owner):
                _wrap(owner, method, functools.partial(_noting_call, method))
    _wrap(keras.callbacks.CallbackList, "on_train_begin", _noting_list)
    _wrap(_EpochIterator, "__init__", _noting_data)


def _wrap(
    owner: Any,
    name: str,
    around: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> None:
    original = vars(owner)[name]
    if getattr(original, "_hvd_wraps", None) != name:
        wrapper: Any = functools.wraps(original)(around(original))
        wrapper._hvd_wraps = name
        setattr(owner, name, wrapper)


def _noting_call(
    method: str, original: Callable[..., Any]
) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any, **kw: Any) -> Any:
        call = Call(method)
        before = _running.set((call, *_running.get()))
        try:
            return original(self, *args, **kw)
        finally:
            _running.reset(before)
            call.end()
            if method == "fit":
                for function in _at_end_of_fit:
                    function(self)

    return wrapper


def _noting_list(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any, **kw: Any) -> Any:
        before = _beginning.set(self)
        try:
            return original(self, *args, **kw)
        finally:
            _beginning.reset(before)

    return wrapper


def _noting_data(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, x: Any, *args: Any, **kw: Any) -> None:
        original(self, x, *args, **kw)
        # Another one, of validation data, comes later.
        for call in _running.get()[:1]:
            if call.epochs is None:
                call.epochs, call.data = self, x

    return wrapper


check_names()
_wrap_everything()
