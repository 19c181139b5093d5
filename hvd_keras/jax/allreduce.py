"""Allreduce: every rank gets the reduction of the ranks' arrays."""

from __future__ import annotations

import jax

from hvd_keras.compression import Compression, Compressor
from hvd_keras.jax.grouped_allreduce import grouped_allreduce
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import ReduceOp


def allreduce(
    tensor: jax.typing.ArrayLike,
    op: ReduceOp | None = None,
    *,
    name: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    compression: type[Compressor] = Compression.none,
    process_set: ProcessSet = global_process_set,
) -> jax.Array:
    """Reduces `tensor` over the ranks of a process set; each gets the result.

    Every rank calls this with the same `name`, shape and dtype. Differentiable
    for `Sum` and `Average`: the gradient is an allreduce with the same `op`
    and factors.

    Args:
        tensor: Array of any shape and any floating, integer or bool dtype.
        op: How values combine: `Average` (the default), `Sum`, `Min`, `Max`,
            `Product` or, for floating dtypes, `Adasum`.
        name: Pairs this call across ranks. Defaults to a count of the nameless
            calls: see `hvd_keras.jax`.
        prescale_factor: Multiplies the array before the reduction.
        postscale_factor: Multiplies the result.
        compression: `Compression.none`, `fp16`, `bf16` or a `Compressor`.
        process_set: The ranks that take part. Defaults to all.

    Returns:
        Array of the shape and dtype of `tensor`, equal on every rank.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on a rank.
        MismatchError: Ranks disagree on shape, dtype, `op` or a factor.
        PeerLostError: A rank left before all had answered.
        StalledError: A rank did not come in time.

    Example, on 2 ranks:

    >>> jax.jit(hvd_keras.jax.allreduce)(jnp.array([1.0, 2.0]) * hvd.rank())
    Array([0.5, 1. ], dtype=float32)
    """
    (result,) = grouped_allreduce(
        [tensor],
        op,
        name=name,
        prescale_factor=prescale_factor,
        postscale_factor=postscale_factor,
        compression=compression,
        process_set=process_set,
    )
    return result
