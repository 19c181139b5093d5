"""Barrier: each rank waits until all have come."""

from __future__ import annotations

from hvd_keras._common.uncompiled import uncompiled
from hvd_keras._values import calls
from hvd_keras.process_set import ProcessSet, global_process_set


@uncompiled
def barrier(
    *,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """As `hvd.barrier`, whatever else the process has imported.

    Example:

    >>> hvd_keras.torch.barrier()
    """
    calls.barrier(name, process_set)
