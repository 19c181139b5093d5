"""Knows which calls of Keras's methods are running, and in which order.

`fit`, `evaluate` and `predict` of `keras.Model` are wrapped. So callbacks, data
and train functions can find the call that runs them.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import keras

from hvd_keras._common import user_code
from hvd_keras._common.replacements import replace
from hvd_keras._keras import training_calls
from hvd_keras._keras.hooks import Hooks

# Keras's own: that of `keras.Model` may be wrapped, by anything callable.
_FIT = [
    vars(each)["fit"] for each in keras.Model.__mro__ if "fit" in vars(each)
]
_, *_FIT_PARAMETERS = inspect.signature(_FIT[-1]).parameters


@dataclasses.dataclass(frozen=True)
class Rows:
    """What is known of the rows of a call's batches.

    Args:
        counts: What all ranks know of them, for `_gradients`.
        may_fill: Whether some may only fill a batch.
        adds_weights: Whether weights were added to say that.
        fills_in_part: Whether such rows may stand beside others.
        are_same: Whether they are the first dimension of each tensor.
        are_fixed: Whether all have the same shape.
        asks_in_tests: Whether `evaluate` needs those of the other ranks.
    """

    counts: Any = None
    may_fill: bool = True
    adds_weights: bool = False
    fills_in_part: bool = False
    are_same: bool = False
    are_fixed: bool = False
    asks_in_tests: bool = False


class Call:
    """A running call of `fit`, `evaluate` or `predict`."""

    def __init__(
        self, method: str, model: Any, arguments: dict[str, Any]
    ) -> None:
        self.method = method
        self.model = model
        # Those of `fit`, and all its callbacks.
        self.arguments = arguments
        self.callbacks = _flat(arguments.get("callbacks"))
        # Whether ranks must ask each other for batches; None: it is unknown.
        self.must_vote: bool | None = None
        # Whether that is unknown, and ranks are sure to take equal steps.
        self.has_equal_steps = False
        # What notes the order of its data, if all its ranks have that.
        self.taken: Any = None
        # What its ranks compare when its callbacks have begun.
        self.checks: dict[str, Any] = {}
        # Whether its metrics are those of all ranks.
        self.sums_metrics = False
        self.rows = Rows()
        self.class_weight: Any = None  # what we apply instead of Keras
        self.epochs: Any = None  # the first EpochIterator that it has made
        self.num_epochs = 0  # that have begun
        self.data: Any = None  # the data of that iterator
        self.others: list[Any] = []  # its labels and sample weights
        self.draws_apart = False  # its random numbers are the rank's own
        # Rows of the last step that count; None or not a number: unknown.
        self.rows_of_step: Any = None
        # Whether `mixed_rows` has looked at a step of it.
        self.is_watched = False
        # Whether ranks compare the data when it ends; None: nobody has asked.
        self.compares_order: bool | None = None
        # Makes weights equal that ranks have trained apart, on all ranks; and
        # with True the slots of optimizers, too.
        self.meet: Callable[[bool], None] = _do_nothing
        # Whether they are apart; the same on all ranks.
        self.is_apart = False
        # What its steps have got; see `distribution._row_checks`.
        self.step_specs: Any = None
        self.data_specs: Any = None  # with targets, without weights of ours
        self.seen_losses: list[Any] = []
        self.seen_metrics: list[Any] = []
        # Whether a step of the script's is tried, after which what is doubtful
        # about it is told unless it was right.
        self.tries_steps = False
        self.doubts: list[Callable[[], None]] = []
        # Gets the gradients of a step before the ranks average them.
        self.at_gradients: Callable[[list[Any]], None] | None = None
        # Called, the last one first, when it has ended or raised.
        self.at_end: list[Callable[[], None]] = []

    def end(self) -> None:
        """Drops model and data, so that it does not keep them alive."""
        while self.at_end:
            self.at_end.pop()()
        self.model = self.epochs = self.data = self.taken = None
        self.others, self.callbacks = [], []
        self.arguments, self.checks = {}, {}
        self.meet = _do_nothing


def _do_nothing(with_slots: bool = False) -> None:
    """What a `fit` does whose ranks train together."""


# Called with the arguments of a `fit`, which has done nothing yet.
at_begin_of_fit: Hooks[Callable[[dict[str, Any]], None]] = Hooks()

# Called with the model when a `fit` has ended or raised.
at_end_of_fit: Hooks[Callable[[Any], None]] = Hooks()

# Called with a call that has ended or raised.
at_end: Hooks[Callable[[Call], None]] = Hooks()

# The running calls of this thread, innermost first.
_running: contextvars.ContextVar[tuple[Call, ...]] = contextvars.ContextVar(
    "_running", default=()
)
_all: list[Call] = []  # of all threads

# Called in place of a method that no other one has called, with its name, the
# model, the method, and the arguments.
_front: Callable[[str, Any, Callable[..., Any], Any, Any], Any] | None = None
_is_behind: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "_is_behind", default=False
)


def set_front(front: Any) -> None:
    """Sets what is called in place of `fit`, `evaluate` and `predict`.

    Args:
        front: Gets the name of the method, the model, the method, and the
            arguments by position and by name; returns what the method returns.
            None: nothing stands before them.
    """
    global _front
    _front = front


def has_front() -> bool:
    """Whether ranks share what a script does that knows nothing of them."""
    return _front is not None


def running_calls() -> tuple[Call, ...]:
    """Returns the running calls of Keras's methods, innermost first."""
    return _running.get()


def any_runs() -> bool:
    """Whether a call runs in any thread."""
    return bool(_all)


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


def install() -> None:
    """Wraps the methods that show a running call.

    If somebody else has overridden a method of Keras, both are wrapped: either
    may be restored, or called, without the other.
    """
    for method in ("fit", "evaluate", "predict"):
        for owner in keras.Model.__mro__:
            if method in vars(owner):
                replace(owner, method, functools.partial(_noting_call, method))


def _noting_call(
    method: str, original: Callable[..., Any]
) -> Callable[..., Any]:
    is_fit = method == "fit"

    def run(self: Any, *args: Any, **kw: Any) -> Any:
        arguments = dict(zip(_FIT_PARAMETERS, args, strict=False))
        call = Call(method, self, {**arguments, **kw} if is_fit else {})
        for check in at_begin_of_fit if is_fit else ():
            check(call.arguments)
        before = _running.set((call, *_running.get()))
        _all.append(call)
        noting = training_calls.in_fit() if is_fit else contextlib.nullcontext()
        try:
            with noting:
                return _bound(original, self)(*args, **kw)
        finally:
            _running.reset(before)
            _all.remove(call)
            if is_fit:
                for function in at_end_of_fit:
                    function(self)
            for each in at_end:
                each(call)
            call.end()

    def fit(self: Any, *args: Any, **kw: Any) -> Any:
        arguments = {**dict(zip(_FIT_PARAMETERS, args, strict=False)), **kw}
        around = _around_fit(arguments.get("callbacks"))
        if around is None:
            return run(self, *args, **kw)
        return around(self, functools.partial(run, self), arguments)

    behind = fit if is_fit else run

    def called(self: Any, *args: Any, **kw: Any) -> Any:
        try:
            return in_front(self, *args, **kw)
        except Exception as error:
            if keras.config.is_traceback_filtering_enabled():
                trace = user_code.without_ours(error.__traceback__)
                error.__traceback__ = trace
            raise

    def in_front(self: Any, *args: Any, **kw: Any) -> Any:
        if _front is None or _is_behind.get() or _running.get():
            return behind(self, *args, **kw)
        token = _is_behind.set(True)
        try:
            own = functools.partial(behind, self)
            return _front(method, self, own, args, kw)
        finally:
            _is_behind.reset(token)

    return called


def _around_fit(callbacks: Any) -> Callable[..., Any] | None:
    """Returns the method `hvd_around_fit` of a callback that has it."""
    for callback in _flat(callbacks):
        around: Callable[..., Any] | None
        around = getattr(callback, "hvd_around_fit", None)
        if around is not None:
            return around
    return None


def _flat(callbacks: Any) -> list[Any]:
    callbacks = getattr(callbacks, "callbacks", callbacks)  # of a list of Keras
    flat: list[Any] = keras.tree.flatten(callbacks or [])
    for each in flat:
        if isinstance(each, type):
            name = each.__name__
            raise TypeError(
                f"`callbacks` must be objects: write `{name}()`. Received: the "
                f"class {name}."
            )
    return flat


def _bound(attribute: Any, instance: Any) -> Any:
    """Returns what `instance.attribute` gives for an attribute of its class.

    Somebody else may have put there what is no function.
    """
    if not hasattr(type(attribute), "__get__"):
        return attribute
    return attribute.__get__(instance, type(instance))
