"""Join: a rank that is out of data lets the others go on."""

from __future__ import annotations

from hvd_keras._values import calls
from hvd_keras.jax._call import end_programs
from hvd_keras.process_set import ProcessSet, global_process_set


def join(
    *,
    process_set: ProcessSet = global_process_set,
    average_over_active: bool = False,
) -> int:
    """As `hvd.join`, for calls of `hvd_keras.jax` and optimizers on JAX.

    It is called outside of `jax.jit`, and first waits for the programs that
    this rank has started.

    Ranks that have joined do not get the updates of the others' distributed
    optimizers: call `hvd.broadcast_variables` afterwards, from the rank that
    joined last. It is returned as an int.

    Example:

    >>> for batch in this_ranks_batches:
    ...     train_step(batch)
    >>> last_rank = hvd_keras.jax.join()
    """
    end_programs("join")
    return calls.join(process_set, average_over_active)
