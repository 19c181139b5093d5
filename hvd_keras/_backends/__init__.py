"""Adapters to the frameworks that Keras runs on.

`interface.py` says what an adapter does. Each adapter has a file, the only one
here that imports its framework. The file is imported when it is needed.
"""

from __future__ import annotations

import importlib

from hvd_keras._backends.interface import Backend

NAMES = ("tensorflow", "jax", "torch")


def current() -> Backend:
    """Returns the adapter of the framework that Keras runs on.

    Raises:
        ImportError: That framework has no adapter.
    """
    import keras

    name = keras.backend.backend()
    if name not in NAMES:
        raise ImportError(
            f"hvd_keras needs Keras on one of the backends {', '.join(NAMES)}. "
            f"Received: keras.backend.backend()={name!r}. Set KERAS_BACKEND."
        )
    return named(name)


# A plain dict, because torch warns about `functools.cache` when it compiles.
_adapters: dict[str, Backend] = {}


def named(name: str) -> Backend:
    """Imports a framework and returns its adapter."""
    if name not in _adapters:
        module = importlib.import_module(f"hvd_keras._backends.{name}")
        _adapters[name] = module.BACKEND
    return _adapters[name]
