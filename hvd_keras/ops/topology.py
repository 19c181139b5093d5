"""Ranks and sizes as ops, which a graph reads each time that it runs.

A program that XLA compiled keeps the values from when it was traced.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from hvd_keras import _native, basics
from hvd_keras._common.autograph import as_it_is
from hvd_keras.ops import _errors, _xla
from hvd_keras.ops._graph import run_independently


@as_it_is
def rank_op(name: str | None = None) -> tf.Tensor:
    """Returns `rank()` as an int32 scalar, read when the op runs.

    Args:
        name: A name for the operation.

    Raises:
        NotInitializedError: When the op runs, `init()` was not called.
    """
    return _query("rank", name)


@as_it_is
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Returns a process set's size as an int32 scalar, read when the op runs.

    Args:
        process_set_id: `ProcessSet.process_set_id`; 0: all ranks.
        name: A name for the operation.

    Raises:
        NotInitializedError: When the op runs, `init()` was not called.
        InvalidArgumentError: When it runs, there is no such process set.
    """
    return _query("size", name, process_set_id=process_set_id)


@as_it_is
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Returns `local_rank()` as an int32 scalar, read when the op runs.

    Args:
        name: A name for the operation.

    Raises:
        NotInitializedError: When the op runs, `init()` was not called.
    """
    return _query("local_rank", name)


@as_it_is
def local_size_op(name: str | None = None) -> tf.Tensor:
    """Returns `local_size()` as an int32 scalar, read when the op runs.

    Args:
        name: A name for the operation.

    Raises:
        NotInitializedError: When the op runs, `init()` was not called.
    """
    return _query("local_size", name)


@as_it_is
def process_set_included_op(
    process_set_id: int = 0, name: str | None = None
) -> tf.Tensor:
    """Returns whether this rank is in a process set: an int32 scalar, 1 or 0.

    It is read when the op runs.

    Args:
        process_set_id: `ProcessSet.process_set_id`; 0: all ranks.
        name: A name for the operation.

    Raises:
        NotInitializedError: When the op runs, `init()` was not called.
        InvalidArgumentError: When it runs, there is no such process set.
    """
    return _query("process_set_included", name, process_set_id=process_set_id)


def _query(kind: str, name: str | None, **attributes: Any) -> tf.Tensor:
    if _xla.in_context():
        value = _value_now(kind, **attributes)
        return tf.constant(value, tf.int32, name=name or kind)
    function = getattr(_native.ops(), f"horovod_{kind}")
    try:
        value = function(name=name, **attributes)
    except tf.errors.OpError as error:
        raise _errors.convert(error) from None
    if not tf.executing_eagerly():
        run_independently(tf.compat.v1.get_default_graph(), value)
    return value


def _value_now(kind: str, process_set_id: int = 0) -> int:
    """Returns what the op would: a program of XLA serves one job only."""
    if kind == "local_rank":
        return basics.local_rank()
    if kind == "local_size":
        return basics.local_size()
    core = _native.core()
    if kind == "rank":
        return int(core.rank())
    ranks = core.process_set_ranks(process_set_id)
    if kind == "size":
        return len(ranks)
    return int(core.rank() in ranks)


for _op_type in (
    "HorovodRank",
    "HorovodSize",
    "HorovodLocalRank",
    "HorovodLocalSize",
    "HorovodProcessSetIncluded",
):
    tf.no_gradient(_op_type)
