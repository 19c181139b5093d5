"""Names the stages of a `tf.data.Dataset`, without TensorFlow."""

from __future__ import annotations

from typing import Any


def kind_of(dataset: Any) -> str:
    """Returns the name of the last stage, as `Batch` or `ParallelMap`."""
    name = type(dataset).__name__.lstrip("_")
    return name.removesuffix("V2").removesuffix("Dataset")
