"""Restores parts of Keras 2 that Horovod programs use and Keras 3 lacks.

`install` changes classes of Keras. Only the package `horovod` in `_site` calls
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from hvd_keras._common.replacements import replace

# Arguments of `compile` that Keras 3 does not take. They asked for what it does
# anyway.
_GONE_FROM_COMPILE = ("experimental_run_tf_function",)


class _CallableList(list[Any]):
    """A list that returns itself when called: `variables`, `variables()`."""

    def __call__(self) -> _CallableList:
        return self


def install() -> None:
    """Lets Keras 3 accept `optimizer.variables()`, `optimizer.lr` and more."""
    optimizer = keras.optimizers.Optimizer
    _make_variables_callable(_owner(optimizer, "variables"))
    replace(optimizer, "lr", lambda _: property(_get_rate, _set_rate))
    # In the class that defines it: Keras asks if a subclass overrides it.
    replace(_owner(keras.Model, "compile"), "compile", _compiling_without)
    for backend in (tf.keras.backend, keras.backend):
        replace(backend, "set_value", lambda _: _set_value)
    replace(keras.backend, "get_value", lambda _: tf.keras.backend.get_value)


def _compiling_without(original: Callable[..., Any]) -> Callable[..., Any]:
    def compile_without(self: Any, *args: Any, **kw: Any) -> Any:
        for name in _GONE_FROM_COMPILE:
            kw.pop(name, None)
        return original(self, *args, **kw)

    return compile_without


def _owner(cls: type, name: str) -> type:
    return next(base for base in cls.__mro__ if name in vars(base))


def _make_variables_callable(cls: Any) -> None:
    """Changes `cls` and the classes derived from it."""
    if "variables" in vars(cls):
        replace(cls, "variables", _callable_variables)
    for derived in cls.__subclasses__():
        _make_variables_callable(derived)


def _callable_variables(variables: Any) -> property:
    return property(lambda self: _CallableList(variables.fget(self)))


def _set_value(x: Any, value: Any) -> None:
    # Keras 3's own function uses `x.dtype.name`, which its variables lack.
    x.assign(value)


def _get_rate(optimizer: Any) -> Any:
    return optimizer.learning_rate


def _set_rate(optimizer: Any, rate: Any) -> None:
    optimizer.learning_rate = rate
