"""Horovod's interface for torch: collectives, optimizers, states.

>>> import hvd_keras.torch as hvd
>>> hvd.init()
>>> optimizer = hvd.DistributedOptimizer(
...     optimizer, named_parameters=model.named_parameters()
... )
>>> hvd.broadcast_parameters(model.state_dict(), root_rank=0)
>>> hvd.allreduce(x, hvd.Sum)

It is for plain torch programs (docs/torch.md) and imports neither Keras nor
TensorFlow. A Keras model on torch needs `import hvd_keras` alone; there, the
collectives serve losses that look at the rows of all ranks.

*Forms.* `allreduce` waits and returns a new tensor, `allreduce_` overwrites its
argument. `allreduce_async` and `allreduce_async_` return a handle at once, for
`poll` and `synchronize`. So do the other collectives, as far as it makes sense.

*Gradients* are the derivatives of the sum of the ranks' losses, of any order.
The gradient of a collective is a collective, too: all ranks must differentiate
what depends on it, or none. Forms that end in an underscore and asynchronous
ones have no gradient.

*Names* pair the calls of the ranks. Calls without a name are counted, so the
ranks must make them in the same order.

*Errors* are those of `hvd_keras.exceptions`.

Tensors on a GPU go through host memory. Inside `torch.compile`, the calls run
between the compiled parts.
"""

from __future__ import annotations

import importlib
from typing import Any

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
from hvd_keras.process_set import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from hvd_keras.reduce_op import Adasum, Average, Max, Min, Product, Sum
from hvd_keras.torch.allgather import allgather, allgather_async
from hvd_keras.torch.allreduce import (
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
)
from hvd_keras.torch.alltoall import alltoall, alltoall_async
from hvd_keras.torch.barrier import barrier
from hvd_keras.torch.broadcast import (
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
)
from hvd_keras.torch.grouped_allgather import (
    grouped_allgather,
    grouped_allgather_async,
)
from hvd_keras.torch.grouped_allreduce import (
    grouped_allreduce,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
)
from hvd_keras.torch.grouped_reducescatter import (
    grouped_reducescatter,
    grouped_reducescatter_async,
)
from hvd_keras.torch.handles import poll, synchronize
from hvd_keras.torch.join import join
from hvd_keras.torch.objects import allgather_object, broadcast_object
from hvd_keras.torch.optimizer import DistributedOptimizer
from hvd_keras.torch.parameters import (
    broadcast_optimizer_state,
    broadcast_parameters,
)
from hvd_keras.torch.reducescatter import reducescatter, reducescatter_async
from hvd_keras.torch.sparse_allreduce import sparse_allreduce_async
from hvd_keras.torch.sync_batch_norm import SyncBatchNorm

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "elastic",
    "global_process_set",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stop_timeline",
    "synchronize",
]


def __getattr__(name: str) -> Any:
    # Elastic training stands above the collectives, also those of torch.
    if name == "elastic":
        return importlib.import_module("hvd_keras.elastic")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
