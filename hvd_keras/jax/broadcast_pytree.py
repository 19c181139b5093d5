"""Broadcast of a pytree: every rank gets the arrays of one rank."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hvd_keras._values.members import to_root_rank
from hvd_keras._values.refusals import refuses
from hvd_keras.jax import _call
from hvd_keras.process_set import ProcessSet, global_process_set


@refuses
def broadcast_pytree(
    tree: Any,
    root_rank: int = 0,
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the pytree that `root_rank` has, on all ranks.

    It sends parameters, states of optimizers and keys of `jax.random` at the
    start, or after one rank has loaded a checkpoint. It has no gradient.

    Args:
        tree: A pytree of arrays and numbers, of the same structure, shapes and
            dtypes on all ranks. `None` has no leaves.
        root_rank: The rank whose arrays all get.
        name: Pairs this call across ranks. Calls without one are counted: see
            `hvd_keras.jax`.
        process_set: The ranks that take part. Defaults to all.

    Returns:
        A pytree of arrays, of the structure of `tree`.

    Raises:
        InvalidArgumentError: The call is wrong on this rank.
        MismatchError: The ranks disagree on shapes or dtypes.

    Example, on 2 ranks:

    >>> params = {"w": jnp.ones(2) * hvd.rank(), "b": 0.5}
    >>> hvd_keras.jax.broadcast_pytree(params, root_rank=1)
    {'b': Array(0.5, dtype=float32), 'w': Array([1., 1.], dtype=float32)}
    """
    name = _call.checked_name("broadcast", name, tree, process_set)
    root = to_root_rank(root_rank, process_set, f"broadcast {name!r}")
    leaves, structure = jax.tree.flatten(tree)
    if not leaves:
        return tree
    arrays = [
        jax.random.key_data(leaf) if _is_key(leaf) else jnp.asarray(leaf)
        for leaf in leaves
    ]
    results = _call.call(
        "broadcast",
        arrays,
        name=name,
        process_set_id=process_set.process_set_id or 0,
        root_rank=root,
    )
    return structure.unflatten(
        jax.random.wrap_key_data(result, impl=jax.random.key_impl(leaf))
        if _is_key(leaf)
        else result
        for leaf, result in zip(leaves, results, strict=True)
    )


def _is_key(leaf: Any) -> bool:
    """Whether a leaf holds keys of `jax.random` that are no plain numbers."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and bool(
        jnp.issubdtype(dtype, jax.dtypes.prng_key)
    )
