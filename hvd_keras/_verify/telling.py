"""Brings the values of a running step to Python, on each framework."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

Array = np.ndarray[Any, Any]


def tell(call: Callable[..., None], tensors: Sequence[Any]) -> None:
    """Calls `call` with the values of tensors, now or when the step runs.

    Calls come in the order in which the step does things.
    """
    tensors = [_dense(tensor) for tensor in tensors]
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        from hvd_keras._common.python_calls import call_on_arrays

        if not tf.executing_eagerly():

            def told(*values: Any) -> Any:
                call(*values)
                return np.int64(0)

            call_on_arrays(told, tensors, [tf.int64])
            return
        call(*[np.asarray(tensor) for tensor in tensors])
    elif backend == "jax":
        import jax

        if any(isinstance(tensor, jax.core.Tracer) for tensor in tensors):

            def called(*values: Any) -> None:
                call(*[np.asarray(value) for value in values])

            jax.debug.callback(called, *tensors, ordered=True)
            return
        call(*[np.asarray(tensor) for tensor in tensors])
    else:
        call(*[keras.ops.convert_to_numpy(tensor) for tensor in tensors])


def _dense(value: Any) -> Any:
    if isinstance(value, keras.Variable):
        return value.value
    if type(value).__name__ == "IndexedSlices":
        import tensorflow as tf

        return tf.convert_to_tensor(value)
    if hasattr(value, "detach"):  # of torch
        return value.detach()
    return value


def leaves_of(data: Any) -> list[tuple[str, Any]]:
    """Returns the tensors of a batch with their names, such as "x" and "y".

    Ragged tensors are told apart by rows later, so they stay two tensors; a
    sparse one becomes dense.
    """
    parts = dict(zip("x y sample_weight".split(), _parts(data), strict=True))
    found = []
    for name, part in parts.items():
        flat = [each for each in keras.tree.flatten(part) if each is not None]
        for index, leaf in enumerate(flat):
            title = name if len(flat) == 1 else f"{name}[{index}]"
            found += _simple(title, leaf)
    return found


def _parts(data: Any) -> tuple[Any, Any, Any]:
    if isinstance(data, list):
        data = tuple(data)
    if isinstance(data, tuple) and len(data) > 3:
        return data, None, None
    x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
    return x, y, weights


def _simple(title: str, leaf: Any) -> list[tuple[str, Any]]:
    kind = type(leaf).__name__
    if kind == "RaggedTensor":
        import tensorflow as tf

        rows = tf.strings.reduce_join(
            tf.strings.as_string(leaf) if leaf.dtype != tf.string else leaf,
            axis=list(range(1, len(leaf.shape))),
            separator=" ",
        )
        return [(title, rows)]
    if kind == "SparseTensor":
        import tensorflow as tf

        return [(title, tf.sparse.to_dense(leaf))]
    return [(title, leaf)] if hasattr(leaf, "shape") else []


def digests(array: Array) -> Array:
    """Returns a number for each row, equal for equal rows alone."""
    if array.ndim == 0:
        array = array[None]
    if array.dtype == object:
        rows = [repr(row).encode() for row in array]
    else:
        rows = [np.ascontiguousarray(row).tobytes() for row in array]
    return np.array(
        [zlib.crc32(row) << 32 | zlib.adler32(row) for row in rows], np.uint64
    )


def fills(weights: Array) -> Array:
    """Returns for each row whether its weight says that it only fills."""
    first = weights.reshape(len(weights), -1)[:, 0].astype(np.float32)
    return (first == 0.0) & np.signbit(first)
