"""Converts the batch normalization of a model to that over all ranks."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras._keras import traces
from hvd_keras._keras.models import layers_of
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.layers.sync_batch_normalization import SyncBatchNormalization
from hvd_keras.process_set import ProcessSet, global_process_set


def convert_sync_batch_normalization(
    model: keras.layers.Layer,
    process_set: ProcessSet = global_process_set,
) -> keras.layers.Layer:
    """Makes each `BatchNormalization` of a model a `SyncBatchNormalization`.

    The model is changed in place and returned: layers keep their arguments,
    names and weights, and a compiled model stays compiled. It may be
    functional, sequential or a subclass, with models and wrappers in it. All
    ranks convert the same model, before the first step. Layers that a model
    makes in its `build` are converted only once it is built.

    Args:
        model: The model, or a layer.
        process_set: The ranks whose batches count. Defaults to all. Layers
            that are a `SyncBatchNormalization` already keep theirs.

    Returns:
        `model`.

    Raises:
        TypeError: An argument has another type.
        InvalidArgumentError: A layer has a class of its own that derives from
            `BatchNormalization`. Nothing is converted then.

    Example:

    >>> model = keras.applications.ResNet50(weights=None)
    >>> model = hvd.convert_sync_batch_normalization(model)
    """
    for name, value, kind in (
        ("model", model, keras.layers.Layer),
        ("process_set", process_set, ProcessSet),
    ):
        if not isinstance(value, kind):
            raise TypeError(
                f"`{name}` must be a {kind.__name__}. Received: "
                f"{name}={value!r}."
            )
    layers = layers_of(model)
    found = [layer for layer in layers if _is_to_convert(layer)]
    for layer in found:
        # The weights, and the graph of a functional model, hold this object.
        layer.__class__ = SyncBatchNormalization
        layer.synchronized = False
        layer.process_set = process_set
    if found:
        for layer in layers:
            if isinstance(layer, keras.Model):
                _forget_functions(layer)
    return model


def _is_to_convert(layer: Any) -> bool:
    if not isinstance(layer, keras.layers.BatchNormalization):
        return False
    if isinstance(layer, SyncBatchNormalization):
        return False
    if type(layer) is not keras.layers.BatchNormalization:
        raise InvalidArgumentError(
            "`model` must have plain layers `BatchNormalization`: a class of "
            "your own must derive from `hvd.SyncBatchNormalization` instead. "
            f"Received: layer {layer.name!r} of class {type(layer).__name__}."
        )
    return True


def _forget_functions(model: keras.Model) -> None:
    """Makes a model trace its steps again."""
    model.train_function = None
    traces.forget(model)
    model.test_function = None
    model.predict_function = None
