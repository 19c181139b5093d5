"""Collectives on arrays of JAX, under `jax.jit` and `jax.grad` too.

>>> import hvd_keras.jax
>>> hvd_keras.jax.allreduce(x, hvd.Sum)

A Keras model on JAX needs none of them: `hvd.DistributedOptimizer` reduces its
gradients. They are for loops of your own.

*Names* pair the calls of the ranks. A call without one is counted: outside of
`jax.jit` when it runs, inside while it is traced, once however often the
program runs. So the ranks must trace the same calls in the same order, and
trace again at the same time. Where one may trace more than the others (for
another shape, in a test of its own), give names.

*Calls in a program* run at the same time where the data allow, in any order.
Where the programs of the ranks differ, as for batches of different sizes, XLA
may make independent calls wait for one another in different orders, which ends
as `StalledError`: reduce such arrays as one, with `grouped_allreduce`.
A call that is under way must not be made a second time with the same name, as
by `jax.pmap` or from two threads.

*Transformations*: `jax.jit`, `jax.grad` (again and again), `jax.checkpoint`,
which keeps what was reduced and does not reduce again, loops and branches that
all ranks take, `jax.vmap` (the batch as one call; of Adasum and the collectives
that mix rows, one call after the other). Not those that differentiate forward:
`jax.jvp`, `jax.jacfwd`, `jax.linearize`. Once a collective is traced,
`jax.checkpoint` takes every `jax.ffi.ffi_call` with side effects in the
process, others' too, and keeps its results likewise.

*Errors* are those of `hvd_keras.exceptions`; of a program, inside
`typed_errors()` and in Keras's `fit`.

Programs run on the CPU: there is no handler for other platforms yet. Arrays of
other devices go through the host's memory, outside of `jax.jit` alone.
"""

from hvd_keras.jax.allgather import allgather
from hvd_keras.jax.allreduce import allreduce
from hvd_keras.jax.alltoall import alltoall
from hvd_keras.jax.broadcast import broadcast
from hvd_keras.jax.errors import typed_errors
from hvd_keras.jax.grouped_allreduce import grouped_allreduce
from hvd_keras.jax.reducescatter import reducescatter

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allreduce",
    "reducescatter",
    "typed_errors",
]
