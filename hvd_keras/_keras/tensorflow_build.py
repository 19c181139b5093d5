"""Builds models on TensorFlow before their first step, as Keras does elsewhere.

| Private name | Used to |
|---|---|
| `backend.compute_output_spec` | build the layers that the model calls |
| `TFEpochIterator._distributed_dataset` | know the batches of a `fit` |
"""

from __future__ import annotations

import logging
from typing import Any

import keras
import tensorflow as tf

from hvd_keras._keras import name_counts
from hvd_keras._keras.calls import Call
from hvd_keras._keras.lookup import private_module, require

_logger = logging.getLogger(__name__)
_backend: Any = private_module("backend")
require(_backend, "compute_output_spec")


def spec_of_batches(fit: Call) -> Any:
    """Returns the specs of the tensors that a step of `fit` gets.

    This takes no batch from the data.
    """
    return require(fit.epochs, "_distributed_dataset").element_spec


def call_with_symbols(model: Any, batch: Any) -> None:
    """Makes the weights of the layers that the model calls, if it can be.

    A model that runs eagerly, and may be unable to do otherwise, is called with
    a batch if there is one.

    Args:
        model: The model.
        batch: A batch, or the specs of its tensors.

    Raises:
        Exception: What a layer of a Sequential model raises. Keras builds that
            by symbols too, and a second time it would raise another error.
    """
    if type(model).call is keras.Model.call:
        return
    x, _, _ = keras.utils.unpack_x_y_sample_weight(_without_optionals(batch))
    symbols = None
    try:
        if model.run_eagerly and any(map(tf.is_tensor, tf.nest.flatten(x))):
            model(x, training=False)
            return
        with name_counts.uncounted():
            symbols = tf.nest.map_structure(_symbol_of, x)

        # Its layers take the names that the first step would give them; the
        # model's outputs, which nobody uses, take none.
        def call(x: Any) -> None:
            model(x, training=False)

        _backend.compute_output_spec(call, symbols)
    except Exception as error:  # of the user's `call`
        is_of_layer = isinstance(model, keras.Sequential) and not model.built
        if is_of_layer and symbols is not None:
            raise
        _logger.debug("%r was not built by a call: %r", model.name, error)


def trace_step(model: Any, batch: Any) -> None:
    """Makes all weights that `train_step` uses. It traces, and runs nothing."""
    step = tf.function(model.train_step, autograph=False)
    step.get_concrete_function(_without_optionals(batch))


def _without_optionals(batch: Any) -> Any:
    optionals = (tf.OptionalSpec, tf.experimental.Optional)
    return tf.nest.map_structure(
        lambda value: None if isinstance(value, optionals) else value, batch
    )


def _symbol_of(value: Any) -> Any:
    if value is None:
        return None
    lengths = list(value.shape)
    if lengths:
        lengths[0] = None  # other batches may have other numbers of rows
    dtype = keras.backend.standardize_dtype(value.dtype)
    return keras.KerasTensor(lengths, dtype)
