"""Loads models from files so that all ranks can train them further."""

from __future__ import annotations

import os
from typing import Any

import h5py
import keras

from hvd_keras._common import damage
from hvd_keras._gradients.distributed_class import must_not_use_xla, unwrapped
from hvd_keras._keras import names as private
from hvd_keras.exceptions import DamagedFileError
from hvd_keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_objects: dict[str, Any] | None = None,
    *,
    safe_mode: bool = True,
    **options: Any,
) -> keras.Model:
    """Loads a model and makes its optimizer distributed.

    This calls `keras.models.load_model`, then `DistributedOptimizer` on the
    optimizer that was saved with the model. The optimizer continues from its
    saved state. Each rank that calls this reads the file itself.

    Args:
        filepath: A file that `model.save` has written, on any number of ranks.
            The optimizer's state is loaded from H5 files too.
        custom_objects: Classes and functions that Keras does not know.
        safe_mode: Whether to refuse code in the file, as Keras does.
        **options: Arguments of `DistributedOptimizer`.

    Returns:
        The model. It has no optimizer if it was saved without one. Where XLA
        cannot run collectives, it is compiled without XLA.

    Raises:
        DamagedFileError: The file is not whole.
        ValueError: As `keras.models.load_model` or `DistributedOptimizer`; or
            the state in an H5 file belongs to another optimizer.

    Example:

    >>> model = hvd.load_model("model.keras")
    >>> model.fit(dataset, initial_epoch=3, epochs=10)
    """
    _check_whole(str(filepath))
    model = keras.models.load_model(
        filepath, custom_objects=custom_objects, safe_mode=safe_mode
    )
    if getattr(model, "optimizer", None) is not None:
        _restore_state(model, filepath)
        DistributedOptimizer(model.optimizer, **options)
        if model.jit_compile and must_not_use_xla(model):
            model.jit_compile = False  # the file holds what "auto" was then
    return model


def _check_whole(path: str) -> None:
    """Raises DamagedFileError if a file of Keras is damaged, as far as known.

    H5 files have no checksums.
    """
    if not os.path.isfile(path):  # a store, a folder, or an error of Keras
        return
    try:
        if path.endswith(".keras"):
            damage.check_zip(path)
        else:
            h5py.File(path, "r").close()
    except Exception as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise DamagedFileError(
            f"{damage.describe(path, error)}. Load another copy, or train the "
            "model again."
        ) from error


def _restore_state(model: keras.Model, filepath: Any) -> None:
    """Restores the optimizer's state of a model from an H5 file.

    Keras builds that optimizer for no variables and does not load its state.
    """
    built = model.optimizer
    if (
        not built.built
        or private.trainable_variables_of(unwrapped(built))
        or not model.trainable_variables
    ):
        return
    optimizer = type(built).from_config(built.get_config())
    values = private.optimizer_values_in_h5(filepath)
    if len(values) != len(optimizer.variables):  # built when it was saved
        optimizer.build(model.trainable_variables)
    shapes = [tuple(variable.shape) for variable in optimizer.variables]
    if shapes != [value.shape for value in values]:
        raise ValueError(
            "The optimizer's state in the file must match its variables. "
            f"Received: {len(values)} arrays in {str(filepath)!r} for "
            f"{len(shapes)} variables of {optimizer.name!r}, or other shapes. "
            "Save the model in a file that ends in `.keras`."
        )
    for variable, value in zip(optimizer.variables, values, strict=True):
        variable.assign(value)
    model.optimizer = optimizer
