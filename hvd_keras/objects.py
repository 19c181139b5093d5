"""Sends Python objects from rank to rank, without pickle.

All functions use the core's blocking collectives on host memory, not TensorFlow
ops. So they work before TensorFlow is imported, in eager code, while a
`tf.function` is traced and in TF1-style graphs. Their bytes stay in host
memory. They are for small things: settings, histories, names. For weights use
`broadcast_variables`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_keras._common.autograph import as_it_is
from hvd_keras._values import object_exchange
from hvd_keras.process_set import ProcessSet, global_process_set


@as_it_is
def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    *,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the object of `root_rank`, on every rank of a process set.

    Objects may be built of None, bool, int, float, complex, str, bytes, list,
    tuple, dict, set, frozenset, numpy arrays and scalars. TensorFlow tensors
    and variables arrive as numpy arrays. Received data are never executed.

    Args:
        obj: The object on `root_rank`; ignored on the others.
        root_rank: The global rank whose object all get, also if `process_set`
            holds only some of the ranks.
        session: Ignored. Horovod has it; here no session is needed.
        name: Pairs this call across ranks. Calls without one pair in order.
        process_set: The ranks that take part. Defaults to all.

    Returns:
        A copy of the object of `root_rank`, also on `root_rank` itself.

    Raises:
        TypeError: The object holds a type that cannot be sent. All ranks raise
            it; it names the type and its place in the object.
        InvalidArgumentError: `root_rank` is not in `process_set`, or this rank
            is not.
        PeerLostError: A rank left before all had answered.

    Example:

    >>> hvd.broadcast_object({"epoch": 3} if hvd.rank() == 0 else None)
    {'epoch': 3}
    """
    return object_exchange.broadcast(
        obj, root_rank, name or "broadcast_object", process_set
    )


@as_it_is
def broadcast_object_fn(
    root_rank: int = 0,
    *,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function that calls `broadcast_object` on its argument.

    Args:
        root_rank: As for `broadcast_object`.
        session: Ignored.
        name: As for `broadcast_object`.
        process_set: As for `broadcast_object`.

    Example:

    >>> broadcast = hvd.broadcast_object_fn(root_rank=0)
    >>> broadcast(3), broadcast("text")
    (3, 'text')
    """

    def broadcast(obj: Any) -> Any:
        return broadcast_object(
            obj, root_rank, name=name, process_set=process_set
        )

    return broadcast


@as_it_is
def allgather_object(
    obj: Any,
    *,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns the objects of all ranks of a process set, in order of rank.

    Args:
        obj: This rank's object, of the types that `broadcast_object` takes.
        session: Ignored. Horovod has it; here no session is needed.
        name: Pairs this call across ranks. Calls without one pair in order.
        process_set: The ranks that take part. Defaults to all.

    Returns:
        A list of copies, one a rank, including this rank's own object.

    Raises:
        TypeError: An object holds a type that cannot be sent. All ranks raise
            it; it names the rank, the type and its place in the object.
        InvalidArgumentError: This rank is not in `process_set`.
        PeerLostError: A rank left before all had answered.

    Example, on 2 ranks:

    >>> hvd.allgather_object(("loss", 0.5 * hvd.rank()))
    [('loss', 0.0), ('loss', 0.5)]
    """
    return object_exchange.allgather(
        obj, name or "allgather_object", process_set
    )
