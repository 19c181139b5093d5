"""Collectives with the arguments of `horovod.tensorflow`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from hvd_keras import ops
from hvd_keras._common.autograph import as_it_is
from hvd_keras.compat.basics import handle_average_backwards_compatibility
from hvd_keras.compression import Compression
from hvd_keras.ops.topology import (
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    size_op,
)
from hvd_keras.process_set import ProcessSet, global_process_set
from hvd_keras.reduce_op import Average, ReduceOp

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
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


@as_it_is
def allreduce(
    tensor: Any,
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
) -> Any:
    """`hvd_keras.allreduce`, with Horovod's arguments."""
    is_sparse = isinstance(tensor, tf.IndexedSlices)
    with _on(device_sparse if is_sparse else device_dense):
        return ops.allreduce(
            tensor,
            handle_average_backwards_compatibility(op, average),
            name=name,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=compression,
            process_set=process_set,
            ignore_name_scope=ignore_name_scope,
        )


@as_it_is
def grouped_allreduce(
    tensors: Sequence[Any],
    average: bool | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    name: str | None = None,
) -> list[Any]:
    """`hvd_keras.grouped_allreduce`, with Horovod's arguments."""
    del device_sparse  # members of a group share one device here
    tensors = list(tensors)
    op = handle_average_backwards_compatibility(op, average)
    if not tensors:
        return []
    with _on(device_dense):
        return ops.grouped_allreduce(
            tensors,
            op,
            name=name,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=compression,
            process_set=process_set,
            ignore_name_scope=ignore_name_scope,
        )


@as_it_is
def allgather(
    tensor: Any,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`hvd_keras.allgather`, with Horovod's arguments."""
    return ops.allgather(
        tensor,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )


@as_it_is
def grouped_allgather(
    tensors: Sequence[Any],
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """`hvd_keras.grouped_allgather`, with Horovod's arguments."""
    return ops.grouped_allgather(
        list(tensors),
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )


@as_it_is
def broadcast(
    tensor: Any,
    root_rank: int,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`hvd_keras.broadcast`, with Horovod's arguments."""
    return ops.broadcast(
        tensor,
        root_rank,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )


@as_it_is
def broadcast_(
    variables: Sequence[Any],
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`hvd_keras.broadcast_`, with Horovod's arguments."""
    return ops.broadcast_(
        list(variables), root_rank, name=name, process_set=process_set
    )


@as_it_is
def alltoall(
    tensor: Any,
    splits: Any = None,
    name: str | None = None,
    ignore_name_scope: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """`hvd_keras.alltoall`, with Horovod's arguments."""
    return ops.alltoall(
        tensor,
        splits,
        name=name,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
    )


@as_it_is
def reducescatter(
    tensor: Any,
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
    ignore_name_scope: bool = False,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Any:
    """`hvd_keras.reducescatter`, with Horovod's arguments."""
    with _on(device_dense):
        return ops.reducescatter(
            tensor,
            op,
            name=name,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=compression,
            process_set=process_set,
            ignore_name_scope=ignore_name_scope,
        )


@as_it_is
def grouped_reducescatter(
    tensors: Sequence[Any],
    device_dense: str = "",
    compression: Any = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Any]:
    """`hvd_keras.grouped_reducescatter`, with Horovod's arguments."""
    with _on(device_dense):
        return ops.grouped_reducescatter(
            list(tensors),
            op,
            prescale_factor=prescale_factor,
            postscale_factor=postscale_factor,
            compression=compression,
            process_set=process_set,
        )


@as_it_is
def join() -> Any:
    """`hvd_keras.join`, on all ranks."""
    return ops.join()


def _on(device: str) -> contextlib.AbstractContextManager[Any]:
    return tf.device(device) if device else contextlib.nullcontext()
