"""The list of the callbacks of a running call.

| Private name | Used to |
|---|---|
| `CallbackList._async_train` | stop all ranks after the same batch |
| `Trainer._eval_epoch_iterator` | know the data of a validation |
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._common.replacements import replace
from hvd_keras._keras import epochs
from hvd_keras._keras.calls import Call, running_calls
from hvd_keras._keras.hooks import Hooks
from hvd_keras._keras.lookup import require

# Called with the list after the callbacks' `on_train_begin`.
at_train_begin: Hooks[Callable[[Any], None]] = Hooks()
# Called with an `evaluate` after the callbacks' `on_test_begin`.
at_test_begin: Hooks[Callable[[Call], None]] = Hooks()

_beginning: contextvars.ContextVar[Any] = contextvars.ContextVar(
    "_beginning", default=None
)


def beginning_callback_list() -> Any | None:
    """Returns the list that is telling its callbacks that training begins."""
    return _beginning.get()


def add_callback(callback_list: Any, callback: Any) -> None:
    """Adds a callback for epochs to a list that may be calling its callbacks.

    If training is beginning, the callback hears of it, after all others.
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


def install() -> None:
    """Wraps the methods by which a list tells its callbacks of a beginning."""
    owner = keras.callbacks.CallbackList
    replace(owner, "on_train_begin", _noting_list)
    replace(owner, "on_test_begin", _noting_test)


def _noting_list(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any, **kw: Any) -> Any:
        before = _beginning.set(self)
        walked = self.callbacks
        try:
            original(self, *args, **kw)
            for callback in self.callbacks:  # also those that came meanwhile
                if all(callback is not known for known in walked):
                    callback.on_train_begin(*args, **kw)
        finally:
            _beginning.reset(before)
        # On JAX and torch, Keras looks at a batch to build the model before.
        for call in running_calls()[:1]:
            call.num_epochs = 0
        for function in at_train_begin:
            function(self)

    return wrapper


def _noting_test(original: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper(self: Any, *args: Any, **kw: Any) -> Any:
        result = original(self, *args, **kw)
        for call in running_calls()[:1]:
            if call.method == "evaluate":
                if call.epochs is None:
                    # Data for validation, which `fit` has made before.
                    kept = getattr(call.model, "_eval_epoch_iterator", None)
                    epochs.note(call, kept)
                for function in at_test_begin:
                    function(call)
        return result

    return wrapper
