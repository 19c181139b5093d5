"""Allgather: every rank gets the rows of all ranks."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from hvd_keras._values.refusals import refuses
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.jax import _call
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Sum

# Name, id of the process set, this rank's place in it, its size.
_Settings = tuple[str, int, int, int]


@refuses
def allgather(
    tensor: jax.typing.ArrayLike,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> jax.Array:
    """As `hvd.allgather`, for JAX arrays.

    Under `jax.jit`, the first dimension is the same on all ranks.

    Example, on 2 ranks:

    >>> hvd_keras.jax.allgather(jnp.array([hvd.rank()]))
    Array([0, 1], dtype=int32)
    """
    name = _call.checked_name("allgather", name, tensor, process_set)
    array = jnp.asarray(tensor)
    if array.ndim == 0:
        raise InvalidArgumentError(
            "`tensor` must have one dimension or more. Received: a scalar "
            f"(allgather {name!r})."
        )
    settings = (
        name,
        process_set.process_set_id or 0,
        process_set.rank() or 0,
        process_set.size() or 1,
    )
    return _gathered(settings, array)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gathered(settings: _Settings, array: Any) -> jax.Array:
    name, process_set_id, _, size = settings
    (result,) = _call.call(
        "allgather",
        [array],
        name=name,
        process_set_id=process_set_id,
        shapes=[(array.shape[0] * size, *array.shape[1:])],
    )
    return result


def _forward(settings: _Settings, array: Any) -> tuple[jax.Array, Any]:
    name, process_set_id, *_ = settings
    result = _gathered(settings, array)
    num_rows = None  # of each rank; in a program, all have the same
    if not _call.is_traced([array]):
        (num_rows,) = _call.call(
            "allgather",
            [jnp.array([array.shape[0]])],
            name=f"{name}/rows",
            process_set_id=process_set_id,
        )
    return result, (array, num_rows)


def _backward(settings: _Settings, saved: Any, upstream: Any) -> tuple[Any]:
    name, process_set_id, index, _ = settings
    array, num_rows = saved
    is_even = num_rows is None or bool((num_rows == num_rows[0]).all())
    (rows,) = _call.call(
        "reducescatter" if is_even else "allreduce",
        [upstream],
        name=f"{name}/gradient",
        process_set_id=process_set_id,
        shapes=[array.shape if is_even else upstream.shape],
        reduce_op=int(Sum),
        prescale=1.0,
        postscale=1.0,
    )
    if not is_even:
        begin = int(num_rows[:index].sum())
        rows = rows[begin : begin + array.shape[0]]
    return (rows,)


_gathered.defvjp(_forward, _backward)
