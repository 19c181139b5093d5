"""Barrier: each rank waits until all have come."""

from __future__ import annotations

import tensorflow as tf

from hvd_keras._common.autograph import as_it_is
from hvd_keras.ops import _arguments
from hvd_keras.ops._emit import emit
from hvd_keras.process_set import ProcessSet, global_process_set


@as_it_is
def barrier(
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tf.Operation | None:
    """Waits until every rank of `process_set` has come to the same barrier.

    In a `tf.function` it is a side effect like `tf.print`: side effects run in
    the order of the program. Tensors that do not depend on it may be computed
    before or after it. In a TF1-style graph, use the operation with
    `tf.control_dependencies`.

    Args:
        name: Pairs this call across ranks. Defaults to the op's graph name, or
            in eager mode to a count of the nameless calls.
        process_set: The ranks that take part. Defaults to all.

    Returns:
        None; in a graph the operation.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on this rank.
        MismatchError: A rank has joined (see `join`).
        PeerLostError: A rank left before all had come.
        StalledError: A rank did not come in time.

    Example:

    >>> hvd.barrier()
    """
    _arguments.check_name(name)
    return emit(
        "barrier",
        name=name,
        process_set_id=_arguments.process_set_id(process_set, name),
        in_program_order=True,
    )


tf.no_gradient("HorovodBarrier")
