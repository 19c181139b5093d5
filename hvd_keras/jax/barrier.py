"""Barrier: each rank waits until all have come."""

from __future__ import annotations

from hvd_keras._values import calls
from hvd_keras.jax._call import end_programs
from hvd_keras.process_set import ProcessSet, global_process_set


def barrier(
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """As `hvd.barrier`, whatever else the process has imported.

    It is called outside of `jax.jit`, and first waits for the programs that
    this rank has started.

    Example:

    >>> hvd_keras.jax.barrier()
    """
    end_programs("barrier")
    calls.barrier(name, process_set)
