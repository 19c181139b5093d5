"""Models from files, ready to be trained on by all ranks."""

from __future__ import annotations

from typing import Any

import keras

from hvd_keras._gradients.distributed_class import must_not_use_xla, unwrapped
from hvd_keras._keras import names as private
from hvd_keras.optimizer import DistributedOptimizer


def load_model(
    filepath: Any,
    custom_objects: dict[str, Any] | None = None,
    *,
    safe_mode: bool = True,
    **options: Any,
) -> keras.Model:
    """Loads a model and makes its optimizer distributed.

    This is `keras.models.load_model`, then `DistributedOptimizer` on the
    optimizer that was saved with the model, which goes on where it was. Every
    rank calls it, and reads the file by itself.

    Args:
        filepath: A file that `model.save` has written, on any number of ranks;
            of an H5 file, too, the state of the optimizer is loaded.
        custom_objects: Classes and functions that Keras does not know.
        safe_mode: Whether code in the file is refused, as Keras does.
        **options: Arguments of `DistributedOptimizer`.

    Returns:
        The model. One that was saved without an optimizer has none. Where XLA
        cannot run collectives it is compiled without XLA.

    Raises:
        ValueError: As `keras.models.load_model` or `DistributedOptimizer`; or
            the state in an H5 file is of another optimizer.

    Example:

    >>> model = hvd.load_model("model.keras")
    >>> model.fit(dataset, initial_epoch=3, epochs=10)
    """
    model = keras.models.load_model(
        filepath, custom_objects=custom_objects, safe_mode=safe_mode
    )
    if getattr(model, "optimizer", None) is not None:
        _restore_state(model, filepath)
        DistributedOptimizer(model.optimizer, **options)
        if model.jit_compile and must_not_use_xla(model):
            model.jit_compile = False  # the file says what "auto" was
    return model


def _restore_state(model: keras.Model, filepath: Any) -> None:
    """Gives a model from an H5 file the optimizer that was saved with it.

    Keras builds that for no variables, and leaves its state out.
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
            "The state of the optimizer must be that of the model's variables. "
            f"Received: {len(values)} arrays in {str(filepath)!r} for "
            f"{len(shapes)} variables of {optimizer.name!r}, or other shapes; "
            "save the model in a file that ends in `.keras`."
        )
    for variable, value in zip(optimizer.variables, values, strict=True):
        variable.assign(value)
    model.optimizer = optimizer
