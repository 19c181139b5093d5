"""Elastic training in one call."""

from __future__ import annotations

import os
from typing import Any

import keras

from hvd_keras.elastic.elastic import Elastic


def fit(
    model: keras.Model,
    x: Any,
    *args: Any,
    callbacks: Any = None,
    commit_seconds: float = 10.0,
    directory: str | os.PathLike[str] | None = None,
    **kw: Any,
) -> keras.callbacks.History:
    """Calls `model.fit` with an `Elastic` callback. All ranks call it.

    Args:
        model: A model that is built and compiled with a
            `DistributedOptimizer`, or made in an `HvdStrategy`.
        x: The data; best those of `hvd.shard`.
        *args: Other arguments of `fit`.
        callbacks: Those of `fit`.
        commit_seconds: See `Elastic`.
        directory: See `Elastic`.
        **kw: Other arguments of `fit`.

    Returns:
        The history of all epochs, also of those before a change.

    Example:

    >>> data = hvd.shard((x, y), batch_size=32, shuffle=True)
    >>> hvd.elastic.fit(model, data, epochs=10)
    """
    elastic = Elastic(commit_seconds, directory)
    given = getattr(callbacks, "callbacks", callbacks)
    given = [each for each in keras.tree.flatten(given) if each is not None]
    return model.fit(x, *args, callbacks=[elastic, *given], **kw)
