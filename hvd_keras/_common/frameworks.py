"""Which framework a tensor is of, and what any tensor can tell of itself."""

from __future__ import annotations

from typing import Any

# The first part of a class's module, by framework. A tensor that JAX traces is
# of its own package, an array of jaxlib.
_FRAMEWORK_OF = {
    "torch": "torch",
    "jax": "jax",
    "jaxlib": "jax",
    "tensorflow": "tensorflow",
}


def framework_of(tensor: Any) -> str:
    """Returns "torch", "jax" or, also for what is no tensor, "tensorflow"."""
    # A user's subclass of a tensor class is in a module of the user's.
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
    """Returns `tensor` as a dtype that has this name in NumPy."""
    framework = framework_of(tensor)
    if framework == "torch":
        import torch

        return tensor.to(getattr(torch, dtype))
    if framework == "jax":
        return tensor.astype(dtype)
    import tensorflow as tf

    return tf.cast(tensor, dtype)
