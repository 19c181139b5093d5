"""Finds private names of Keras, or says which one is missing."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

import keras


def private_module(*paths: str) -> Any:
    """Imports a module of `keras.src` from the first path that exists.

    Args:
        paths: Its places in releases of Keras, relative to `keras.src`.

    Raises:
        ImportError: It is in none of these places.
    """
    names = [f"keras.src.{path}" for path in paths]
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            # The missing module may be one that this module imports.
            if not f"{name}.".startswith(f"{error.name}."):
                raise
    raise ImportError(
        f"hvd_keras needs the private module `{' or '.join(names)}`, which is "
        f"missing in {_version()}"
    )


def require(
    owner: object, name: str, parameters: Sequence[str] | None = None
) -> Any:
    """Returns `owner.name`, or says which private name is missing.

    Args:
        owner: Class or module of Keras or TensorFlow.
        name: The attribute that it must have.
        parameters: Names of the parameters that a function must take.

    Raises:
        ImportError: The attribute is missing or takes other parameters.
    """
    where = f"{getattr(owner, '__name__', owner)}.{name}"
    found = getattr(owner, name, None)
    if found is None:
        problem = "is missing"
    elif parameters is None:
        return found
    else:
        received = list(inspect.signature(found).parameters)
        if received == list(parameters):
            return found
        problem = f"takes {received}, expected {list(parameters)}"
    raise ImportError(
        f"hvd_keras needs the private name `{where}`, which {problem} in "
        f"{_version()}"
    )


def owner_of(method: str) -> Any:
    """Returns the class that defines a method of `keras.Model`."""
    return next(c for c in keras.Model.__mro__ if method in vars(c))


def _version() -> str:
    return (
        f"Keras {keras.__version__} on {keras.backend.backend()}. Install "
        "a version of Keras that this release of hvd_keras supports."
    )
