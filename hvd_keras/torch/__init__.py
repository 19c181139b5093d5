"""Collectives on torch tensors, with gradients.

>>> import hvd_keras.torch
>>> hvd_keras.torch.allreduce(x, hvd.Sum)

A Keras model on torch does not need them, because `hvd.DistributedOptimizer`
reduces its gradients. They are for losses that look at the rows of all ranks,
and for your own training loops.

*Gradients* are the derivatives of the sum of the ranks' losses, of any order.
The gradient of a collective is a collective, too: all ranks must differentiate
what depends on it, or none.

*Names* pair the calls of the ranks. Calls without a name are counted, so the
ranks must make them in the same order. A call waits for the other ranks.

*Errors* are those of `hvd_keras.exceptions`.

Tensors on a GPU go through host memory. Inside `torch.compile`, the calls run
between the compiled parts.
"""

from hvd_keras.torch.allgather import allgather
from hvd_keras.torch.allreduce import allreduce
from hvd_keras.torch.alltoall import alltoall
from hvd_keras.torch.broadcast import broadcast
from hvd_keras.torch.grouped_allreduce import grouped_allreduce
from hvd_keras.torch.join import join
from hvd_keras.torch.reducescatter import reducescatter

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allreduce",
    "join",
    "reducescatter",
]
