"""Alltoall: every rank sends a part of its rows to each rank."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from hvd_keras._values.refusals import refuses
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.jax import _call
from hvd_keras.process_set import ProcessSet, global_process_set

_Settings = tuple[str, int]  # name, id of the process set


@refuses
def alltoall(
    tensor: jax.typing.ArrayLike,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> jax.Array:
    """As `hvd.alltoall` without `splits`, for JAX arrays.

    The array has the same shape on all ranks, and its first dimension is a
    multiple of their number.

    Example, on 2 ranks:

    >>> hvd_keras.jax.alltoall(jnp.arange(2) + 10 * hvd.rank())  # on rank 1
    Array([ 1, 11], dtype=int32)
    """
    name = _call.checked_name("alltoall", name, tensor, process_set)
    array = jnp.asarray(tensor)
    size = process_set.size() or 1
    if array.ndim == 0 or array.shape[0] % size:
        raise InvalidArgumentError(
            f"The number of rows of `tensor` must be a multiple of {size}, the "
            f"number of ranks. Received: shape {list(array.shape)} (alltoall "
            f"{name!r})."
        )
    return _exchanged((name, process_set.process_set_id or 0), array)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _exchanged(settings: _Settings, array: Any) -> jax.Array:
    name, process_set_id = settings
    (result,) = _call.call(
        "alltoall", [array], name=name, process_set_id=process_set_id
    )
    return result


def _forward(settings: _Settings, array: Any) -> tuple[jax.Array, None]:
    return _exchanged(settings, array), None


def _backward(settings: _Settings, _: None, upstream: Any) -> tuple[Any]:
    name, process_set_id = settings
    return (_exchanged((f"{name}/gradient", process_set_id), upstream),)


_exchanged.defvjp(_forward, _backward)
