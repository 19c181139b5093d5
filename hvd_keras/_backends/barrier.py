"""Barrier, on each framework: each rank waits until all have come."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hvd_keras._common.autograph import as_it_is
from hvd_keras._values import calls
from hvd_keras.process_set import ProcessSet, global_process_set

if TYPE_CHECKING:
    import tensorflow as tf


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
    `tf.control_dependencies`. On JAX it is called outside of `jax.jit`, and
    first waits for the programs that this rank has started.

    Args:
        name: Pairs this call across ranks. Defaults to the op's graph name, or
            outside of graphs to a count of the nameless calls.
        process_set: The ranks that take part. Defaults to all.

    Returns:
        None; in a graph of TensorFlow the operation.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on this rank, or inside of
            `jax.jit`.
        MismatchError: A rank has joined (see `join`).
        PeerLostError: A rank left before all had come.
        StalledError: A rank did not come in time.

    Example:

    >>> hvd.barrier()
    """
    if _runs_on_tensorflow():
        from hvd_keras import ops

        return ops.barrier(name=name, process_set=process_set)
    if _runs_on_jax():
        from hvd_keras.jax.barrier import barrier as jax_barrier

        jax_barrier(name=name, process_set=process_set)
    elif "torch" in sys.modules:  # it must not compile the call
        from hvd_keras.torch.barrier import barrier as torch_barrier

        torch_barrier(name=name, process_set=process_set)
    else:
        calls.barrier(name, process_set)
    return None


def _runs_on_tensorflow() -> bool:
    """Whether an op of TensorFlow is meant; it is not imported to find out.

    A rank alone may have imported TensorFlow, to write logs for example: that
    must not decide beside another framework.
    """
    tf = sys.modules.get("tensorflow")
    if tf is None:
        return False
    if not tf.executing_eagerly():
        return True
    backend = _keras_backend()
    if backend is not None:
        return backend == "tensorflow"
    return not {"jax", "torch"} & sys.modules.keys()


def _runs_on_jax() -> bool:
    if "jax" not in sys.modules:
        return False
    return _keras_backend() in (None, "jax")


def _keras_backend() -> str | None:
    """Returns the backend of Keras; None if Keras is not in use."""
    backend = getattr(sys.modules.get("keras"), "backend", None)
    return None if backend is None else str(backend.backend())
