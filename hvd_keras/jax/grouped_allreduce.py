"""Grouped allreduce: many arrays, reduced as one request."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from hvd_keras._values.calls import checked_reduction
from hvd_keras._values.refusals import refuses
from hvd_keras.compression import (
    Compression,
    Compressor,
    reduce_compressed,
    wire_format_of,
)
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.jax import _by_hand, _call
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import ReduceOp

# Name, id of the process set, op, prescale and postscale factor, wire format.
_Settings = tuple[str, int, int, float, float, int]


@refuses
def grouped_allreduce(
    tensors: Sequence[jax.typing.ArrayLike],
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: type[Compressor] | Compressor = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> list[jax.Array]:
    """As `hvd.grouped_allreduce`, for JAX arrays.

    It is differentiable for `Sum` and `Average`.

    Example, on 2 ranks:

    >>> hvd_keras.jax.grouped_allreduce([jnp.ones(2), jnp.array(3)], hvd.Sum)
    [Array([2., 2.], dtype=float32), Array(6, dtype=int32)]
    """
    name = _call.checked_name("allreduce", name, tensors, process_set)
    tensors = list(tensors)
    _by_hand.note_reduced(name, tensors, op, process_set)
    arrays = [jnp.asarray(tensor) for tensor in tensors]
    if not arrays:
        raise InvalidArgumentError(
            "`tensors` must hold one or more arrays. Received: an empty list "
            f"(name {name!r})."
        )
    reduction = checked_reduction(op, prescale_factor, postscale_factor)
    set_id = process_set.process_set_id or 0
    settings = (name, set_id, *reduction, wire_format_of(compression))
    return reduce_compressed(
        compression, arrays, functools.partial(_reduced, settings)
    )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _reduced(settings: _Settings, arrays: list[Any]) -> list[jax.Array]:
    name, process_set_id, op, prescale, postscale, wire_format = settings
    return _call.call(
        "allreduce",
        arrays,
        name=name,
        process_set_id=process_set_id,
        reduce_op=op,
        prescale=prescale,
        postscale=postscale,
        wire_format=wire_format,
    )


def _forward(
    settings: _Settings, arrays: list[Any]
) -> tuple[list[jax.Array], None]:
    return _reduced(settings, arrays), None


def _backward(
    settings: _Settings, _: None, upstream: list[Any]
) -> tuple[list[Any]]:
    name, op = settings[0], settings[2]
    _call.refuse_gradient("allreduce", name, op)
    # The gradients of integers have a dtype without values.
    places = [i for i, array in enumerate(upstream) if _has_values(array)]
    gradients = list(upstream)
    if places:
        settings = (f"{name}/gradient", *settings[1:])
        reduced = _reduced(settings, [upstream[i] for i in places])
        for i, gradient in zip(places, reduced, strict=True):
            gradients[i] = gradient
    return (gradients,)


def _has_values(array: Any) -> bool:
    return bool(array.dtype != jax.dtypes.float0)


_reduced.defvjp(_forward, _backward)
