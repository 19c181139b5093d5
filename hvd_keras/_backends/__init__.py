"""What differs between the frameworks that Keras runs on.

`interface.py` says what an adapter does; there is one file an adapter, which
alone imports its framework, and is imported when it is needed.
"""

from __future__ import annotations

import importlib

from hvd_keras._backends.interface import Backend

NAMES = ("tensorflow", "jax", "torch")


def current() -> Backend:
    """Returns the adapter of the framework that Keras runs on.

    Raises:
        ImportError: There is none.
    """
    import keras

    name = keras.backend.backend()
    if name not in NAMES:
        raise ImportError(
            f"hvd_keras needs Keras on one of the backends {', '.join(NAMES)}. "
            f"Received: keras.backend.backend()={name!r}. Set KERAS_BACKEND."
        )
    return named(name)


# Not `functools.cache`, of which torch warns where it compiles.
_adapters: dict[str, Backend] = {}


def named(name: str) -> Backend:
    """Returns the adapter of a framework, and imports that."""
    if name not in _adapters:
        module = importlib.import_module(f"hvd_keras._backends.{name}")
        _adapters[name] = module.BACKEND
    return _adapters[name]
