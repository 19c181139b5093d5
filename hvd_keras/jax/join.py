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
    """Takes part in the others' allreduces until every rank has joined.

    It serves ranks with unequal amounts of data: each calls it when it has no
    more. While it waits, this rank gives every `allreduce` and
    `grouped_allreduce` of `process_set`, and the reductions of a distributed
    optimizer, a value that changes nothing: 0 to `Sum`, `Average` and `Adasum`,
    the largest number to `Min`, the lowest to `Max`, 1 to `Product`. All other
    collectives of the set fail on the ranks that call them. When all have
    joined, everything is as before.

    It is called outside of `jax.jit`, and first waits for the programs that
    this rank has started.

    With a distributed optimizer, each rank must take at least one step: in the
    first step the ranks compare their gradients. Ranks that have joined do not
    get the updates of the others: call `hvd.broadcast_variables` afterwards,
    from the rank that joined last.

    Args:
        process_set: The ranks that take part. Defaults to all.
        average_over_active: Whether an `Average` divides by the number of
            ranks that have not joined, rather than by the size of the set; the
            same on all ranks.

    Returns:
        The global rank that joined last, equal on every rank.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: This rank is not in `process_set`, or the call is
            inside of `jax.jit`.
        MismatchError: Ranks disagree on `average_over_active`.
        PeerLostError: A rank left before all had joined.

    Example:

    >>> for batch in this_ranks_batches:
    ...     train_step(batch)
    >>> last_rank = hvd_keras.jax.join()
    """
    end_programs("join")
    return calls.join(process_set, average_over_active)
