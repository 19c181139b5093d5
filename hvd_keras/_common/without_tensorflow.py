"""Says what to use instead of what needs TensorFlow."""

from __future__ import annotations

# What serves other frameworks instead of what needs TensorFlow.
_ELSEWHERE = (
    "allgather allreduce alltoall broadcast grouped_allreduce join "
    "reducescatter"
)
_INSTEAD = {
    **{
        name: f"`hvd_keras.torch.{name}` or `hvd_keras.jax.{name}`"
        for name in _ELSEWHERE.split()
    },
    "broadcast_": "`hvd.broadcast_variables`",
    "broadcast_global_variables": "`hvd.broadcast_variables`",
    "DistributedGradientTape": "`hvd.DistributedOptimizer`",
    "PartialDistributedGradientTape": "`hvd.PartialDistributedOptimizer`",
    "grouped_allgather": (
        "`hvd_keras.torch.grouped_allgather` or `hvd_keras.jax.allgather`"
    ),
    "grouped_reducescatter": (
        "`hvd_keras.torch.grouped_reducescatter` or "
        "`hvd_keras.jax.reducescatter`"
    ),
    "HvdStrategy": "`hvd.DistributedOptimizer`",
    "local_rank_op": "`hvd.local_rank()`",
    "local_size_op": "`hvd.local_size()`",
    "process_set_included_op": "`process_set.included()`",
    "rank_op": "`hvd.rank()`",
    "size_op": "`hvd.size()`",
    "Strategy": "`hvd.DistributedOptimizer`",
}


def text_of(name: str) -> str:
    """Returns the text of the error for a name of `hvd_keras`."""
    instead = _INSTEAD.get(name)
    cure = f"Use {instead}, or install it" if instead else "Install it"
    return (
        f"`hvd.{name}` needs TensorFlow, which is not installed. {cure}. See "
        "docs/backends.md."
    )
