"""Collectives on TensorFlow tensors. Each has a module named after it."""

from hvd_keras.ops.allgather import allgather
from hvd_keras.ops.allreduce import allreduce
from hvd_keras.ops.alltoall import alltoall
from hvd_keras.ops.barrier import barrier
from hvd_keras.ops.broadcast import broadcast
from hvd_keras.ops.broadcast_in_place import broadcast_
from hvd_keras.ops.grouped_allgather import grouped_allgather
from hvd_keras.ops.grouped_allreduce import grouped_allreduce
from hvd_keras.ops.grouped_reducescatter import grouped_reducescatter
from hvd_keras.ops.join import join
from hvd_keras.ops.reducescatter import reducescatter
from hvd_keras.ops.topology import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from hvd_keras.reduce_op import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
)

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "allgather",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "join",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
