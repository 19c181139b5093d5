"""Collectives on JAX arrays, which also work under `jax.jit` and `jax.grad`.

>>> import hvd_keras.jax as hvd
>>> hvd.init()
>>> optimizer = hvd.distribute(optax.adam(1e-3))
>>> params = hvd.broadcast_pytree(params)
>>> hvd.allreduce(x, hvd.Sum)

They are for your own training loops (docs/jax.md). A Keras model on JAX does
not need them, because `hvd.DistributedOptimizer` reduces its gradients.

*Names* pair the calls of the ranks. Calls without a name are counted. Outside
of `jax.jit` a call counts each time it runs. Inside it counts once, when it is
traced, however often the program runs. So the ranks must trace the same calls
in the same order, and trace again at the same time. If one rank may trace more
than the others (another shape, a test that only it runs), give names.

*Calls in a program* run at the same time if the data allow it, in any order.
If the ranks' programs differ, as for batches of different sizes, XLA may make
independent calls wait for one another in different orders. This ends in a
`StalledError`. Reduce such arrays as one, with `grouped_allreduce`. While a
call is running, do not make another with the same name, as `jax.pmap` or two
threads would.

*Transformations* that work:

- `jax.jit`, and `jax.grad` of any order.
- `jax.checkpoint`. It keeps the reduced values and does not reduce again.
- Loops and branches that all ranks take.
- `jax.vmap`: the batch is one call. For Adasum and for collectives that mix
  rows, it is one call after the other.

Forward differentiation does not work: `jax.jvp`, `jax.jacfwd`,
`jax.linearize`. Once a collective has been traced, `jax.checkpoint` accepts
every `jax.ffi.ffi_call` with side effects in the process, also those of other
packages, and keeps its results too.

*Errors* are those of `hvd_keras.exceptions`. Errors of a program have these
types inside `typed_errors()` and in Keras's `fit`.

Programs run on the CPU: there is no handler for other platforms yet. Outside of
`jax.jit`, arrays on other devices go through host memory.
"""

from hvd_keras.basics import (
    cross_rank,
    cross_size,
    init,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    size,
    start_timeline,
    stop_timeline,
)
from hvd_keras.compression import Compression, Compressor
from hvd_keras.jax.allgather import allgather
from hvd_keras.jax.allreduce import allreduce
from hvd_keras.jax.alltoall import alltoall
from hvd_keras.jax.barrier import barrier
from hvd_keras.jax.broadcast import broadcast
from hvd_keras.jax.broadcast_pytree import broadcast_pytree
from hvd_keras.jax.distribute import distribute
from hvd_keras.jax.errors import typed_errors
from hvd_keras.jax.grouped_allreduce import grouped_allreduce
from hvd_keras.jax.join import join
from hvd_keras.jax.reducescatter import reducescatter
from hvd_keras.process_set import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from hvd_keras.reduce_op import Adasum, Average, Max, Min, Product, Sum

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "Compressor",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "add_process_set",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_pytree",
    "cross_rank",
    "cross_size",
    "distribute",
    "global_process_set",
    "grouped_allreduce",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "remove_process_set",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
    "typed_errors",
]
