"""Errors that are both ours and TensorFlow's.

A kernel returns a status whose payload names our class. The status's code
selects a class of TensorFlow, whose constructor gets the payloads as arguments.
`install` lets that constructor choose our subclass if a payload names one. This
works in eager calls, in `tf.function`, in Keras's `fit` and in sessions. XLA
passes on only the code and the text, so there the text begins with the name of
our class.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from hvd_keras import exceptions
from hvd_keras._common.error_text import MARK, with_subject
from hvd_keras._common.replacements import replace
from hvd_keras.ops import _xla

_PAYLOAD_KEY = b"hvd_keras/error"  # kErrorPayloadKey in tf_convert.h


class _FromText:
    """Mixin: an error can be made from its text alone.

    Keras does so when it adds to the text of an error from a layer. AutoGraph
    adds to the text of errors whose arguments have the names of TensorFlow's.
    """

    def __init__(
        self,
        node_def: Any = None,
        op: Any = None,
        message: Any = None,
        *args: Any,
    ) -> None:
        if message is None:
            node_def, message = None, node_def
        self._init(node_def, op, self._text_of(message), *args)

    def _text_of(self, message: str) -> str:
        return with_subject(MARK.sub("", message, count=1))

    def _init(self, *args: Any) -> None:
        super().__init__(*args)


# TensorFlow's class comes first, because TensorFlow and Keras call its
# constructor: they make a new instance to add to the text.
class NotInitializedError(
    _FromText,
    tf.errors.FailedPreconditionError,
    exceptions.NotInitializedError,
):
    """`init()` was not called, or `shutdown()` was."""


class InvalidArgumentError(
    _FromText, tf.errors.InvalidArgumentError, exceptions.InvalidArgumentError
):
    """A call is wrong in itself, on this rank or on another one."""


class MismatchError(
    _FromText, tf.errors.FailedPreconditionError, exceptions.MismatchError
):
    """Ranks disagree about a collective."""


class PeerLostError(
    _FromText,
    tf.errors.UnavailableError,
    tf.errors.UnknownError,
    exceptions.PeerLostError,
):
    """A rank died or left the job.

    The status has the code UNKNOWN. If an op that is not TensorFlow's own
    returns UNAVAILABLE, TensorFlow makes it an internal error without payload
    (see tf_convert.cc).
    """

    def _init(self, node_def: Any, op: Any, message: str, *args: Any) -> None:
        tf.errors.OpError.__init__(
            self, node_def, op, message, tf.errors.UNAVAILABLE, *args
        )


class StalledError(
    _FromText, tf.errors.DeadlineExceededError, exceptions.StalledError
):
    """A rank did not come in time."""


class ShutdownError(
    _FromText, tf.errors.AbortedError, exceptions.ShutdownError
):
    """The engine was shut down while the call was pending."""


class InternalError(
    _FromText, tf.errors.InternalError, exceptions.InternalError
):
    """A system call failed, or the engine is in a state it should not be in."""


class DynamicShapeError(
    _FromText, tf.errors.UnimplementedError, NotImplementedError
):
    """XLA cannot run a collective on a tensor whose shape depends on values.

    XLA finds this out when it compiles, and does not say which call it was. It
    may be any call that was traced with unknown lengths.
    """

    def _text_of(self, message: str) -> str:
        return with_subject(_DYNAMIC.sub(_dynamic_shape_text, message, count=1))


_NUM_SHOWN = 3  # of the possible calls
# XLA's message for this error.
_DYNAMIC = re.compile(
    r'CustomCall "hvd_(\w+)" is not supported to have a dynamic dimension'
)


def _dynamic_shape_text(found: re.Match[str]) -> str:
    kind = found[1]
    # XLA mostly compiles what was traced last.
    names = list(_xla.unknown_lengths[kind])[::-1]
    shown = ", ".join(f"'{name}'" for name in names[:_NUM_SHOWN])
    if len(names) > _NUM_SHOWN:
        shown += f" and {len(names) - _NUM_SHOWN} more"
    call = f"one of {kind} {shown}" if len(names) > 1 else f"{kind} {shown}"
    return (
        f"In a function that XLA compiles (`jit_compile=True`), the shape of a "
        f"tensor must not depend on values, as the results of "
        f"`tf.boolean_mask`, `tf.where` and `tf.unique` do. Received: such a "
        f"tensor for {call}. Pad it to a fixed number of rows, or pass "
        f"{_xla.CURE}"
    )


_TRACED = re.compile(
    r"^hvd_keras\.(?:exceptions|ops\._errors)\.(\w+)Error: ", re.MULTILINE
)

_CLASSES: dict[str, type[tf.errors.OpError]] = {
    "NotInitialized": NotInitializedError,
    "InvalidArgument": InvalidArgumentError,
    "Mismatch": MismatchError,
    "PeerLost": PeerLostError,
    "Stalled": StalledError,
    "Shutdown": ShutdownError,
    "Internal": InternalError,
}


def invalid_argument(message: str) -> InvalidArgumentError:
    """Returns the error for a call that Python itself finds wrong."""
    return InvalidArgumentError(None, None, message)


def convert(error: tf.errors.OpError) -> tf.errors.OpError:
    """Returns `error` as an instance of our class if our kernel caused it.

    Python 3.10 matches `except` against the class that TensorFlow asked for.
    Raise the result of this function, and it matches against ours.
    """
    ours = _class_for(error.experimental_payloads)
    if ours is None or isinstance(error, exceptions.HvdError):
        return error
    return ours(
        error.node_def, error.op, error.message, error.experimental_payloads
    )


def install() -> None:
    """Makes TensorFlow raise our classes."""

    def new(cls: type[Exception], *args: Any, **kwargs: Any) -> Exception:
        for argument in args:
            ours = _class_for(argument)
            if ours is not None and issubclass(ours, cls):
                return Exception.__new__(ours, *args, **kwargs)
        ours = _raised_in_python(args)
        if ours is not None and not issubclass(cls, exceptions.HvdError):
            return Exception.__new__(_also(ours, cls), *args, **kwargs)
        return Exception.__new__(cls, *args, **kwargs)

    # Python then runs the subclass's `__init__`: the error is a `cls` too.
    replace(tf.errors.OpError, "__new__", lambda _: staticmethod(new))


def _raised_in_python(args: Any) -> type[tf.errors.OpError] | None:
    """Returns the class of an error that Python has raised in an op.

    `tf.py_function` and generators of tf.data tell a text that ends with the
    traceback, and have a code of their own.
    """
    text = args[2] if len(args) > 2 else ""
    found = _TRACED.findall(text) if isinstance(text, str) else []
    return _CLASSES.get(found[-1]) if found else None


_both: dict[tuple[Any, Any], Any] = {}


def _also(ours: Any, cls: Any) -> Any:
    """Returns a class of errors of both classes."""
    if issubclass(ours, cls):
        return ours
    if (ours, cls) not in _both:
        names = {"__module__": ours.__module__}
        _both[ours, cls] = type(ours.__name__, (ours, cls), names)
    return _both[ours, cls]


def _class_for(argument: Any) -> type[tf.errors.OpError] | None:
    """Returns the class of ours that an argument of an error names, if any."""
    if isinstance(argument, str):
        if _DYNAMIC.search(argument) is not None:
            return DynamicShapeError
        found = MARK.search(argument)
        return None if found is None else _CLASSES.get(found[1])
    if not isinstance(argument, dict):
        return None
    name = argument.get(_PAYLOAD_KEY)
    return None if name is None else _CLASSES.get(name.decode())
