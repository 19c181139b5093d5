"""Broadcast: every rank gets the array of one rank."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from hvd_keras import basics
from hvd_keras._values.members import to_root_rank
from hvd_keras._values.refusals import refuses
from hvd_keras.jax import _call
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Sum

_Settings = tuple[str, int, int]  # name, id of the process set, root rank


@refuses
def broadcast(
    tensor: jax.typing.ArrayLike,
    root_rank: int,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> jax.Array:
    """As `hvd.broadcast`, for JAX arrays.

    Example, on 2 ranks:

    >>> hvd_keras.jax.broadcast(jnp.array(hvd.rank() + 5), root_rank=1)
    Array(6, dtype=int32)
    """
    name = _call.checked_name("broadcast", name, tensor, process_set)
    array = jnp.asarray(tensor)
    root = to_root_rank(root_rank, process_set, f"broadcast {name!r}")
    return _sent((name, process_set.process_set_id or 0, root), array)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _sent(settings: _Settings, array: Any) -> jax.Array:
    name, process_set_id, root_rank = settings
    (result,) = _call.call(
        "broadcast",
        [array],
        name=name,
        process_set_id=process_set_id,
        root_rank=root_rank,
    )
    return result


def _forward(settings: _Settings, array: Any) -> tuple[jax.Array, None]:
    return _sent(settings, array), None


def _backward(settings: _Settings, _: None, upstream: Any) -> tuple[Any]:
    name, process_set_id, root_rank = settings
    (summed,) = _call.call(
        "allreduce",
        [upstream],
        name=f"{name}/gradient",
        process_set_id=process_set_id,
        reduce_op=int(Sum),
        prescale=1.0,
        postscale=1.0,
    )
    # The barrier hides the rank from XLA: it must make equal programs on all.
    is_root = jax.lax.optimization_barrier(
        jnp.asarray(basics.rank() == root_rank)
    )
    return (jnp.where(is_root, summed, jnp.zeros_like(summed)),)


_sent.defvjp(_forward, _backward)
