"""Allgather: every rank gets the rows of all ranks."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.jax import _call
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Average

_Settings = tuple[str, int, int]  # name, id and size of the process set


def allgather(
    tensor: jax.typing.ArrayLike,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> jax.Array:
    """Returns the rows of all ranks, one rank after the other.

    Differentiable: the gradient is this rank's rows of the average of the
    ranks' gradients.

    Args:
        tensor: Array with one dimension or more. The first one may differ by
            rank, except under `jax.jit` and `jax.grad`.
        name: As for `allreduce`.
        process_set: The ranks that take part. Defaults to all.

    Returns:
        Array with the rows of all ranks: its first dimension is the sum of
        theirs.

    Raises:
        MismatchError: Ranks disagree on a dimension or the dtype.
        HvdError: As for `allreduce`.

    Example, on 2 ranks:

    >>> hvd_keras.jax.allgather(jnp.array([hvd.rank()]))
    Array([0, 1], dtype=int32)
    """
    array = jnp.asarray(tensor)
    name = _call.checked_name("allgather", name, array, process_set)
    if array.ndim == 0:
        raise InvalidArgumentError(
            "`tensor` must have one dimension or more. Received: a scalar "
            f"(allgather {name!r})."
        )
    size = process_set.size() or 1
    return _gathered((name, process_set.process_set_id or 0, size), array)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _gathered(settings: _Settings, array: Any) -> jax.Array:
    name, process_set_id, size = settings
    (result,) = _call.call(
        "allgather",
        [array],
        name=name,
        process_set_id=process_set_id,
        shapes=[(array.shape[0] * size, *array.shape[1:])],
    )
    return result


def _forward(settings: _Settings, array: Any) -> tuple[jax.Array, Any]:
    return _gathered(settings, array), array


def _backward(settings: _Settings, array: Any, upstream: Any) -> tuple[Any]:
    name, process_set_id, _ = settings
    (rows,) = _call.call(
        "reducescatter",
        [upstream],
        name=f"{name}/gradient",
        process_set_id=process_set_id,
        shapes=[array.shape],
        reduce_op=int(Average),
        prescale=1.0,
        postscale=1.0,
    )
    return (rows,)


_gathered.defvjp(_forward, _backward)
