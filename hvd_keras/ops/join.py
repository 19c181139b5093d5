"""Join: a rank that is out of data lets the others go on."""

from __future__ import annotations

import tensorflow as tf

from hvd_keras._common.autograph import as_it_is
from hvd_keras.ops import _arguments
from hvd_keras.ops._emit import emit
from hvd_keras.process_set import ProcessSet, global_process_set

# One name for all calls: a rank cannot join twice at once.
_NAME = "join"


@as_it_is
def join(
    *,
    process_set: ProcessSet = global_process_set,
    average_over_active: bool = False,
) -> tf.Tensor:
    """Takes part in the others' allreduces until every rank has joined.

    It serves ranks with unequal amounts of data: each calls it when it has no
    more. While it waits, this rank gives every `allreduce` and
    `grouped_allreduce` of `process_set` a value that changes nothing: 0 to
    `Sum`, `Average` and `Adasum`, the largest number to `Min`, the lowest to
    `Max`, 1 to `Product`. All other collectives of the set fail on the ranks
    that call them. So does an allreduce of `tf.IndexedSlices`, because it
    gathers. When all have joined, everything is as before.

    To train embeddings, give optimizers and tapes `sparse_as_dense=True`. With
    a distributed optimizer, each rank must take at least one step: in the first
    step the ranks compare their gradients.

    In a `tf.function` it runs in order with other side effects. Collectives are
    not side effects, so make it depend on them.

    Args:
        process_set: The ranks that take part. Defaults to all.
        average_over_active: Whether an `Average` divides by the number of
            ranks that have not joined, rather than by the size of the set; the
            same on all ranks.

    Returns:
        The global rank that joined last, an int32 scalar, equal on every rank.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The call is wrong on a rank.
        MismatchError: Ranks disagree on `average_over_active`.
        PeerLostError: A rank left before all had joined.

    Example:

    >>> for batch in this_ranks_batches:
    ...     train_step(batch)
    >>> last_rank = hvd.join()
    """
    return emit(
        "join",
        name=_NAME,
        process_set_id=_arguments.process_set_id(process_set, _NAME),
        in_program_order=True,
        average_over_active=bool(average_over_active),
    )


tf.no_gradient("HorovodJoin")
