"""Barrier, as an op: each rank waits until all have come."""

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
    """Does what `hvd_keras.barrier` says, as an op of TensorFlow."""
    _arguments.check_name(name)
    return emit(
        "barrier",
        name=name,
        process_set_id=_arguments.process_set_id(process_set, name),
        in_program_order=True,
    )


tf.no_gradient("HorovodBarrier")
