"""Reducescatter: every rank gets a part of the reduction."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from hvd_keras._values.calls import checked_reduction
from hvd_keras._values.refusals import refuses
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.jax import _call
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Average, ReduceOp

# Name, id of the process set, this rank's place in it, its size, op, factors.
_Settings = tuple[str, int, int, int, int, float, float]


@refuses
def reducescatter(
    tensor: jax.typing.ArrayLike,
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> jax.Array:
    """As `hvd.reducescatter`, for JAX arrays and without `compression`.

    It is differentiable for `Sum` and `Average`, if the rows divide evenly.

    Example, on 2 ranks:

    >>> hvd_keras.jax.reducescatter(jnp.arange(4), hvd.Sum)  # on rank 1
    Array([4, 6], dtype=int32)
    """
    name = _call.checked_name("reducescatter", name, tensor, process_set)
    array = jnp.asarray(tensor)
    if array.ndim == 0:
        raise InvalidArgumentError(
            "`tensor` must have one dimension or more. Received: a scalar "
            f"(reducescatter {name!r})."
        )
    settings = (
        name,
        process_set.process_set_id or 0,
        process_set.rank() or 0,
        process_set.size() or 1,
        *checked_reduction(op, prescale_factor, postscale_factor),
    )
    return _scattered(settings, array)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scattered(settings: _Settings, array: Any) -> jax.Array:
    name, process_set_id, index, size, op, prescale, postscale = settings
    rows, rest = divmod(array.shape[0], size)
    (result,) = _call.call(
        "reducescatter",
        [array],
        name=name,
        process_set_id=process_set_id,
        shapes=[(rows + (index < rest), *array.shape[1:])],
        reduce_op=op,
        prescale=prescale,
        postscale=postscale,
    )
    return result


def _forward(settings: _Settings, array: Any) -> tuple[jax.Array, Any]:
    return _scattered(settings, array), array


def _backward(settings: _Settings, array: Any, upstream: Any) -> tuple[Any]:
    name, process_set_id, _, size, op, prescale, postscale = settings
    _call.refuse_gradient("reducescatter", name, op)
    if array.shape[0] % size:
        raise NotImplementedError(
            "To differentiate `reducescatter`, the number of rows must be a "
            f"multiple of the number of ranks. Received: {array.shape[0]} "
            f"rows, {size} ranks ({name!r})."
        )
    (gathered,) = _call.call(
        "allgather",
        [upstream],
        name=f"{name}/gradient",
        process_set_id=process_set_id,
        shapes=[array.shape],
    )
    factor = prescale * postscale / (size if op == Average else 1)
    return (gathered * jnp.asarray(factor, gathered.dtype),)


_scattered.defvjp(_forward, _backward)
