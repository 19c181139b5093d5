"""Keeps track of running calls of `fit`, and of their callbacks and data.

`fit`, `evaluate` and `predict` of `keras.Model` are wrapped. So callbacks, data
and train functions can find the call that runs them.

The private names of Keras in this table are used only here. They are checked
when this module is imported.

| Name | Used to |
|---|---|
| `EpochIterator._num_batches` | tell Keras how many steps that epoch has |
| `EpochIterator.steps_per_epoch` | know how many batches are asked for |
| `EpochIterator.data_adapter` | know how many batches a rank has |
| `DataAdapter.batch_size`, `partial_batch_size` | know their rows |
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

from hvd_keras._common.replacements import replace
from hvd_keras._keras.lookup import private_module, require

_EpochIterator: Any = private_module("trainers.epoch_iterator").EpochIterator


class Call:
    """A running call of `fit`, `evaluate` or `predict`."""

    def __init__(self, method: str, model: Any) -> None:
        self.method = method
        self.model = model
        # Whether its metrics are those of all ranks.
        self.sums_metrics = False
        # What all ranks know of the rows of its batches, for `_gradients`.
        self.counts: Any = None
        self.may_fill = True
        self.adds_weights = False
        self.epochs: Any = None  # the first EpochIterator that it has made
        self.data: Any = None  # the data of that iterator
        self.others: list[Any] = []  # its labels and sample weights

    def end(self) -> None:
        """Drops model and data, so that it does not keep them alive."""
        self.model = self.epochs = self.data = None
        self.others = []


# The running calls of this thread, innermost first.
_running: contextvars.ContextVar[tuple[Call, ...]] = contextvars.ContextVar(
    "_running", default=()
)
_beginning: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "_beginning", default=None
)
_at_data: list[Callable[[Call], None]] = []
_at_test: list[Callable[[Call], None]] = []
_at_train_begin: list[Callable[[Any], None]] = []
_at_end_of_fit: list[Callable[[Any], None]] = []
_step_counts: list[Callable[[Any], int | None]] = []


def running_calls() -> tuple[Call, ...]:
    """Returns the running calls of Keras's methods, innermost first."""
    return _running.get()


def is_caller(call: Call) -> bool:
    """Whether `call` is the innermost of `running_calls`."""
    calls = _running.get()
    return bool(calls) and calls[0] is call


def running_fit() -> Call | None:
    """Returns the innermost running call if it is a `fit`."""
    for call in _running.get()[:1]:
        if call.method == "fit" and call.epochs is not None:
            return call
    return None


def is_in_fit() -> bool:
    """Whether a `fit` runs, maybe with another call inside."""
    return any(call.method == "fit" for call in _running.get())


def call_at_data(function: Callable[[Call], None]) -> None:
    """Calls `function(call)` whenever a call has its data, before a step.

    A function that is there already is not added again.
    """
    if function not in _at_data:
        _at_data.append(function)


def call_at_test(function: Callable[[Call], None]) -> None:
    """Calls `function(call)` after the callbacks know that a test begins.

    A function that is there already is not added again.
    """
    if function not in _at_test:
        _at_test.append(function)


def call_at_train_begin(function: Callable[[Any], None]) -> None:
    """Calls `function(callback_list)` after the callbacks' `on_train_begin`."""
    if function not in _at_train_begin:
        _at_train_begin.append(function)


def call_at_end_of_fit(function: Callable[[Any], None]) -> None:
    """Calls `function(model)` whenever a `fit` has ended or raised."""
    if function not in _at_end_of_fit:
        _at_end_of_fit.append(function)


def count_steps_by(function: Callable[[Any], int | None]) -> None:
    """Lets `function(data)` tell how many steps an epoch has that begins.

    It returns None if it does not know. `steps_per_epoch` goes before. A
    function that is there already is not added again.
    """
    if function not in _step_counts:
        _step_counts.append(function)


def batch_sizes_of(call: Call) -> list[int] | None:
    """Returns what tells the rows of each batch; None if they are unknown."""
    adapter = require(call.epochs, "data_adapter")
    # Others may end with a smaller batch.
    if not type(adapter).__name__.startswith(("Array", "TF", "TorchData")):
        return None
    if adapter.batch_size is None:
        return None
    numbers = adapter.num_batches, adapter.batch_size
    return [*(n or 0 for n in numbers), adapter.partial_batch_size or 0]


def arrays_of(call: Call) -> list[Any] | None:
    """Returns inputs, labels and weights of a call; None: no arrays."""
    adapter = require(call.epochs, "data_adapter")
    if not type(adapter).__name__.startswith("Array"):
        return None
    leaves = keras.tree.flatten([call.data, *call.others])
    return [leaf for leaf in leaves if leaf is not None]


def is_capped(fit: Call) -> bool:
    """Whether a running `fit` was told how many steps an epoch has."""
    return bool(fit.epochs.steps_per_epoch)


def num_batches_of(fit: Call) -> float | None:
    """Returns how many batches the data of a running `fit` has.

    It is None if unknown, and infinity if the data have no end.
    """
    tf = sys.modules.get("tensorflow")  # without it there are no datasets
    if tf is not None and isinstance(fit.data, tf.data.Dataset):
        cardinality = int(fit.data.cardinality().numpy())
        if cardinality == tf.data.INFINITE_CARDINALITY:
            return math.inf
    adapter = require(fit.epochs, "data_adapter")
    num_batches: int | None = adapter.num_batches
    return num_batches


def keep_order(data: Any) -> None:
    """Keeps a running `fit` from shuffling the batches of a `PyDataset`.

    Otherwise each rank would shuffle them in its own order, unless `fit` gets
    `shuffle=False`. If the data have several workers, Keras has already
    shuffled by now.
    """
    fit = running_fit()
    if fit is None:
        return
    adapter = require(fit.epochs, "data_adapter")
    if getattr(adapter, "py_dataset", None) is data:
        require(adapter, "shuffle")
        adapter.shuffle = False


def let_decide(fit: Call, decide: Callable[[int], int]) -> bool:
    """Lets `decide` end the epochs of a running `fit` on torch.

    Only on torch does Keras take a batch before it calls the train function.
    `decide` gets 1, or 0 if there is no batch left. It returns 0 to end the
    epoch, else 1.

    Returns:
        Whether Keras runs on torch; on other backends this does nothing.
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
            raise StopIteration  # so that the data start again
        raise StopIteration

    fit.epochs.__class__ = type(base.__name__, (base,), {"__next__": __next__})
    return True


def beginning_callback_list() -> Any | None:
    """Returns the list that is telling its callbacks that training begins."""
    return _beginning.get()


def add_callback(callback_list: Any, callback: Any) -> None:
    """Adds a callback for epochs to a list that may be calling its callbacks.

    Keras may call its method for the end of a batch late.
    """
    callback_list.callbacks = [*callback_list.callbacks, callback]


def remove_callback(callback_list: Any, callback: Any) -> None:
    """Removes a callback from a list that may be calling its callbacks."""
    # A new list: Keras may be walking the old one.
    callback_list.callbacks = [
        each for each in callback_list.callbacks if each is not callback
    ]


def call_batch_ends_in_order(callback_list: Any) -> None:
    """Keeps Keras from calling `on_train_batch_end` in other threads.

    Keras would do so for a single callback that is not in a list, and for
    callbacks that are added later.
    """
    require(callback_list, "_async_train")
    callback_list._async_train = False


def set_initial_epoch(model: Any, epoch: int | None) -> None:
    """Makes a beginning `fit` start at `epoch`; None: at its own first one."""
    model._initial_epoch = epoch


class CheckpointOfAllRanks(keras.callbacks.ModelCheckpoint):
    """Keras's ModelCheckpoint, but `hvd_save` decides which rank saves."""

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
    require(_EpochIterator, "_enumerate_iterator", ["self"])
    for name in ("x", "y", "sample_weight"):
        if name not in inspect.signature(_EpochIterator).parameters:
            raise ImportError(
                f"hvd_keras needs the parameter `{name}` of Keras's "
                "`EpochIterator`, which is missing in Keras "
                f"{keras.__version__}."
            )


def install() -> None:
    """Wraps the methods that show a running `fit`.

    If somebody else has overridden a method of Keras, both are wrapped: either
    may be restored, or called, without the other.
    """
    for method in ("fit", "evaluate", "predict"):
        for owner in keras.Model.__mro__:
            if method in vars(owner):
                noting = functools.partial(_noting_call, method)
                replace(owner, method, noting)
    replace(keras.callbacks.CallbackList, "on_train_begin", _noting_list)
    replace(keras.callbacks.CallbackList, "on_test_begin", _noting_test)
    replace(_EpochIterator, "__init__", _noting_data)
    replace(_EpochIterator, "_enumerate_iterator", _counting_steps)


def _noting_call(
    method: str, original: Callable[..., Any]
) -> Callable[..., Any]:
    def run(self: Any, *args: Any, **kw: Any) -> Any:
        call = Call(method, self)
        before = _running.set((call, *_running.get()))
        try:
            return _bound(original, self)(*args, **kw)
        finally:
            _running.reset(before)
            call.end()
            if method == "fit":
                for function in _at_end_of_fit:
                    function(self)

    def wrapper(self: Any, *args: Any, **kw: Any) -> Any:
        around = _around_fit(args, kw) if method == "fit" else None
        if around is None:
            return run(self, *args, **kw)
        bound = inspect.signature(original).bind(self, *args, **kw)
        _, *names = bound.arguments
        arguments = {name: bound.arguments[name] for name in names}
        return around(self, functools.partial(run, self), arguments)

    return wrapper


def _around_fit(
    args: tuple[Any, ...], kw: dict[str, Any]
) -> Callable[..., Any] | None:
    """Returns the method `hvd_around_fit` of a callback that has it."""
    callbacks = kw.get("callbacks", args[5] if len(args) > 5 else None)
    callbacks = getattr(callbacks, "callbacks", callbacks)  # of a list of Keras
    for callback in keras.tree.flatten(callbacks):
        around: Callable[..., Any] | None
        around = getattr(callback, "hvd_around_fit", None)
        if around is not None:
            return around
    return None


def _bound(attribute: Any, instance: Any) -> Any:
    """Returns what `instance.attribute` gives for an attribute of its class.

    Somebody else may have put there what is no function.
    """
    if not hasattr(type(attribute), "__get__"):
        return attribute
    return attribute.__get__(instance, type(instance))


def _noting_list(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any, **kw: Any) -> Any:
        before = _beginning.set(self)
        try:
            original(self, *args, **kw)
        finally:
            _beginning.reset(before)
        for function in _at_train_begin:
            function(self)

    return wrapper


def _noting_test(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any, **kw: Any) -> Any:
        result = original(self, *args, **kw)
        for call in _running.get()[:1]:
            if call.method == "evaluate":
                for function in _at_test:
                    function(call)
        return result

    return wrapper


def _noting_data(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def wrapper(self: Any, x: Any, *args: Any, **kw: Any) -> None:
        original(self, x, *args, **kw)
        self._hvd_data = x
        # Later ones hold validation data.
        for call in _running.get()[:1]:
            if call.epochs is None:
                call.epochs, call.data = self, x
                given = signature.bind(self, x, *args, **kw).arguments
                call.others = [given.get("y"), given.get("sample_weight")]
                for function in _at_data:
                    function(call)

    return wrapper


def _counting_steps(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any) -> Any:
        for function in _step_counts:
            num_steps = function(getattr(self, "_hvd_data", None))
            if num_steps is not None and not self.steps_per_epoch:
                self._num_batches = num_steps
        return original(self)

    return wrapper


check_names()
