"""Finds the framework and the dtype of a tensor, and casts it."""

from __future__ import annotations

from typing import Any

# The framework, by the first part of a class's module. JAX's tracers come from
# the package jax, its arrays from jaxlib.
_FRAMEWORK_OF = {
    "torch": "torch",
    "jax": "jax",
    "jaxlib": "jax",
    "tensorflow": "tensorflow",
}


def framework_of(tensor: Any) -> str:
    """Returns "torch" or "jax"; for anything else "tensorflow"."""
    # A user may subclass a tensor class, in a module of any name.
    for base in type(tensor).__mro__:
        framework = _FRAMEWORK_OF.get(base.__module__.partition(".")[0])
        if framework is not None:
            return framework
    return "tensorflow"


def dtype_of(tensor: Any) -> str:
    """Returns the dtype as NumPy names it: "float32"."""
    dtype = tensor.dtype
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def cast(tensor: Any, dtype: str) -> Any:
    """Returns `tensor` cast to the dtype that has this name in NumPy."""
    framework = framework_of(tensor)
    if framework == "torch":
        import torch

        return tensor.to(getattr(torch, dtype))
    if framework == "jax":
        return tensor.astype(dtype)
    import tensorflow as tf

    return tf.cast(tensor, dtype)
