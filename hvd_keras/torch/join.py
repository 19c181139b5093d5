"""Join: a rank that is out of data lets the others go on."""

from __future__ import annotations

from hvd_keras._common.uncompiled import uncompiled
from hvd_keras._values import calls
from hvd_keras.process_set import ProcessSet, global_process_set


@uncompiled
def join(
    *,
    process_set: ProcessSet = global_process_set,
    average_over_active: bool = False,
) -> int:
    """As `hvd.join`, for calls of `hvd_keras.torch` and optimizers on torch.

    Ranks that have joined do not get the updates of the others' distributed
    optimizers: call `hvd.broadcast_variables` afterwards, from the rank that
    joined last. It is returned as an int.

    Example:

    >>> for batch in this_ranks_batches:
    ...     train_step(batch)
    >>> last_rank = hvd_keras.torch.join()
    """
    return calls.join(process_set, average_over_active)
