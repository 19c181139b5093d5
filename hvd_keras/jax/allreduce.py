"""Allreduce: every rank gets the reduction of the ranks' arrays."""

from __future__ import annotations

from typing import Any

import jax

from hvd_keras.compression import Compression, Compressor
from hvd_keras.jax.grouped_allreduce import grouped_allreduce
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import ReduceOp


def allreduce(
    tensor: Any,
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: type[Compressor] | Compressor = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """As `hvd.allreduce`, for JAX arrays, and inside of `jax.jit` too.

    `tensor` may be a pytree of one or more arrays, such as gradients: one call
    reduces all of them. The reduction is differentiable for `Sum` and
    `Average`. Calls without a name are counted: see `hvd_keras.jax`.

    Example, on 2 ranks:

    >>> jax.jit(hvd_keras.jax.allreduce)(jnp.array([1.0, 2.0]) * hvd.rank())
    Array([0.5, 1. ], dtype=float32)
    """
    leaves, structure = jax.tree.flatten(tensor)
    results = grouped_allreduce(
        leaves,
        op,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
        process_set=process_set,
    )
    return structure.unflatten(results)
