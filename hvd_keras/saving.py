"""Models from files, ready to be trained on by all ranks."""

from __future__ import annotations

from typing import Any

import keras

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
        filepath: A file that `model.save` has written, on any number of ranks.
        custom_objects: Classes and functions that Keras does not know.
        safe_mode: Whether code in the file is refused, as Keras does.
        **options: Arguments of `DistributedOptimizer`.

    Returns:
        The model. One that was saved without an optimizer has none.

    Raises:
        ValueError: As `keras.models.load_model` or `DistributedOptimizer`.

    Example:

    >>> model = hvd.load_model("model.keras")
    >>> model.fit(dataset, initial_epoch=3, epochs=10)
    """
    model = keras.models.load_model(
        filepath, custom_objects=custom_objects, safe_mode=safe_mode
    )
    if getattr(model, "optimizer", None) is not None:
        DistributedOptimizer(model.optimizer, **options)
    return model
