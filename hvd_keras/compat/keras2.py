"""Restores parts of Keras 2 that Horovod programs use and Keras 3 lacks.

`install` changes classes of Keras. Only the package `horovod` in `_site` calls
it.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf

# Arguments of `compile` that Keras 3 does not take. They asked for what it does
# anyway.
_GONE_FROM_COMPILE = ("experimental_run_tf_function",)


class _CallableList(list[Any]):
    """A list that returns itself when called: `variables`, `variables()`."""

    def __call__(self) -> _CallableList:
        return self


def install() -> None:
    """Lets Keras 3 accept `optimizer.variables()`, `optimizer.lr` and more.

    A second call does nothing.
    """
    optimizer = keras.optimizers.Optimizer
    if hasattr(optimizer, "lr"):
        return
    _make_variables_callable(_owner(optimizer, "variables"))
    optimizer.lr = property(_get_rate, _set_rate)
    _let_compile_ignore(_GONE_FROM_COMPILE)
    tf.keras.backend.set_value = keras.backend.set_value = _set_value
    keras.backend.get_value = tf.keras.backend.get_value


def _let_compile_ignore(names: tuple[str, ...]) -> None:
    # Patch the class that defines it: Keras asks if a subclass overrides it.
    owner: Any = _owner(keras.Model, "compile")
    original = owner.compile

    @functools.wraps(original)
    def compile_without(self: Any, *args: Any, **kw: Any) -> Any:
        for name in names:
            kw.pop(name, None)
        return original(self, *args, **kw)

    owner.compile = compile_without


def _owner(cls: type, name: str) -> type:
    return next(base for base in cls.__mro__ if name in vars(base))


def _make_variables_callable(cls: Any) -> None:
    """Changes `cls` and the classes derived from it."""
    variables = vars(cls).get("variables")
    if variables is not None:

        def callable_variables(self: Any) -> _CallableList:
            return _CallableList(variables.fget(self))

        cls.variables = property(callable_variables)
    for derived in cls.__subclasses__():
        _make_variables_callable(derived)


def _set_value(x: Any, value: Any) -> None:
    # Keras 3's own function uses `x.dtype.name`, which its variables lack.
    x.assign(value)


def _get_rate(optimizer: Any) -> Any:
    return optimizer.learning_rate


def _set_rate(optimizer: Any, rate: Any) -> None:
    optimizer.learning_rate = rate
