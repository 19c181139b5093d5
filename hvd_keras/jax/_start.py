"""Compares over the ranks the parameters with which an optimizer begins."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hvd_keras import _native
from hvd_keras._values import first_values
from hvd_keras._values.first_values import Value
from hvd_keras.process_set import ProcessSet

_CURE = "Call `hvd_keras.jax.broadcast_pytree` for the parameters"


class FirstValues:
    """What `init` has got, until the first `update`, which all ranks call.

    Within a program, an array has no values that Python could compare.
    """

    def __init__(self, process_set: ProcessSet) -> None:
        self._process_set = process_set
        self._values: list[Value] = []
        self._num_bytes = 0  # that were broadcast before
        self._is_compared = False

    def note(self, params: Any) -> None:
        """Keeps checksums of parameters, if ranks will compare them."""
        if not first_values.are_compared(self._process_set):
            return
        leaves, _ = jax.tree_util.tree_flatten_with_path(params)
        self._values = [
            Value.of(f"params{jax.tree_util.keystr(path)}", _held(leaf))
            for path, leaf in leaves
        ]
        self._num_bytes = _native.core().num_broadcast_bytes()

    def compare(self, gradients: Any) -> None:
        """Compares them, once; the user is told of a difference."""
        process_set = self._process_set
        if self._is_compared or not first_values.are_compared(process_set):
            return
        self._is_compared = True
        num_values = len(jax.tree_util.tree_leaves(gradients))
        values = self._values
        if len(values) != num_values:  # `init` ran elsewhere
            values = [Value("", None, 0)] * num_values
        num_moved = _native.core().num_broadcast_bytes() - self._num_bytes
        found = first_values.compare(
            "jax.distribute/first_values", values, process_set
        )
        first_values.note(found, _CURE, process_set, num_moved=num_moved)


def _held(leaf: Any) -> Any:
    is_key = jax.dtypes.issubdtype(jnp.result_type(leaf), jax.dtypes.extended)
    is_here = getattr(leaf, "is_fully_addressable", True)
    if isinstance(leaf, jax.core.Tracer) or is_key or not is_here:
        return None
    return np.asarray(leaf)
