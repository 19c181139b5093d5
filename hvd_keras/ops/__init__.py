"""Collectives on TensorFlow tensors: one a module, named as its function."""

from hvd_keras.ops.allgather import allgather
from hvd_keras.ops.allreduce import allreduce
from hvd_keras.ops.broadcast import broadcast
from hvd_keras.ops.grouped_allreduce import grouped_allreduce
from hvd_keras.ops.reduce_op import (
    Average,
    Max,
    Min,
    Product,
    ReduceOp,
    Sum,
)

__all__ = [
    "Average",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "allgather",
    "allreduce",
    "broadcast",
    "grouped_allreduce",
]
