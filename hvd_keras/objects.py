"""Python objects from rank to rank, without pickle.

All functions go through the core's blocking collectives on host memory and
not through TensorFlow ops: they work before TensorFlow is imported, in eager
code, while a `tf.function` is traced and in TF1-style graphs alike, and their
bytes never pass a device. They are for small things: settings, histories,
names. For weights there is `broadcast_variables`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hvd_keras import _native, basics
from hvd_keras._common.autograph import as_it_is
from hvd_keras._values.object_format import MAX_BYTES, decode, encode
from hvd_keras._values.root_rank import checked_root_rank
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet, global_process_set

_OK = 0
_UNSUPPORTED = 1  # the payload is the text of a TypeError
_TOO_LARGE = 2  # the payload is the text of a ValueError


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
    and variables arrive as numpy arrays. Nothing that is received is executed.

    Args:
        obj: The object on `root_rank`; ignored on the others.
        root_rank: The rank whose object all get: its number among all ranks,
            also where `process_set` is a part of them.
        session: Ignored: no TensorFlow session is needed. Horovod has it.
        name: Pairs this call across ranks. Calls without one pair in order.
        process_set: The ranks that take part. Defaults to all.

    Returns:
        A copy of the object of `root_rank`, also on `root_rank` itself.

    Raises:
        TypeError: The object holds a type that has no form on the wire; on
            all ranks, with the type and its place in the object.
        InvalidArgumentError: `root_rank` is not in `process_set`, or this rank
            is not.
        PeerLostError: A rank left before all had answered.

    Example:

    >>> hvd.broadcast_object({"epoch": 3} if hvd.rank() == 0 else None)
    {'epoch': 3}
    """
    name = name or "broadcast_object"
    root_rank = to_root_rank(root_rank, process_set, f"object {name!r}")
    process_set_id = process_set.process_set_id
    status, payload = _OK, b""
    if basics.rank() == root_rank:
        status, payload = _try_encode(obj)
    header = np.array([status, len(payload)], np.int64)
    (header,) = _native.core().broadcast(
        f"{name}/header", [header], root_rank, process_set_id
    )
    status, num_bytes = (int(number) for number in header)
    if not 0 <= num_bytes <= MAX_BYTES:
        raise InvalidArgumentError(
            f"An object must take at most {MAX_BYTES} bytes. Received: "
            f"{num_bytes} bytes announced by rank {root_rank} ({name!r})."
        )
    data = np.zeros(num_bytes, np.uint8)
    if basics.rank() == root_rank:
        data = np.frombuffer(payload, np.uint8)
    (data,) = _native.core().broadcast(
        f"{name}/payload", [data], root_rank, process_set_id
    )
    _raise_if_refused([status], [data.tobytes()], [root_rank], name)
    return decode(data.tobytes())


@as_it_is
def broadcast_object_fn(
    root_rank: int = 0,
    *,
    session: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:
    """Returns a function of an object that is `broadcast_object` of it.

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
        session: Ignored: no TensorFlow session is needed. Horovod has it.
        name: Pairs this call across ranks. Calls without one pair in order.
        process_set: The ranks that take part. Defaults to all.

    Returns:
        A list as long as the set; copies, this rank's own included.

    Raises:
        TypeError: An object holds a type that has no form on the wire; on all
            ranks, with the rank, the type and its place in the object.
        InvalidArgumentError: This rank is not in `process_set`.
        PeerLostError: A rank left before all had answered.

    Example, on 2 ranks:

    >>> hvd.allgather_object(("loss", 0.5 * hvd.rank()))
    [('loss', 0.0), ('loss', 0.5)]
    """
    name = name or "allgather_object"
    ranks = members_of(process_set, f"object {name!r}")
    process_set_id = process_set.process_set_id
    status, payload = _try_encode(obj)
    header = np.array([[status, len(payload)]], np.int64)
    (headers,) = _native.core().allgather(
        f"{name}/header", [header], process_set_id
    )
    data = np.frombuffer(payload, np.uint8)
    (data,) = _native.core().allgather(
        f"{name}/payload", [data], process_set_id
    )
    ends = np.cumsum(headers[:, 1])
    payloads = [
        data[end - num_bytes : end].tobytes()
        for end, num_bytes in zip(ends, headers[:, 1], strict=True)
    ]
    statuses = [int(status) for status in headers[:, 0]]
    _raise_if_refused(statuses, payloads, ranks, name)
    return [decode(payload) for payload in payloads]


def members_of(process_set: ProcessSet, what: str) -> list[int]:
    """Returns the ranks of a process set that this rank is in.

    Raises:
        NotInitializedError: `init()` was not called.
        InvalidArgumentError: The set is not registered, or not with this rank.
    """
    rank = basics.rank()
    ranks = process_set.ranks
    if process_set.process_set_id is None or ranks is None:
        raise InvalidArgumentError(
            f"`process_set` must be registered, with `init(process_sets=...)` "
            f"or `add_process_set`. Received: process_set={process_set!r} "
            f"(rank {rank}, {what})."
        )
    if rank not in ranks:
        raise InvalidArgumentError(
            f"This rank must be in process set {process_set.process_set_id} "
            f"(ranks {', '.join(map(str, ranks))}). Received: a call on rank "
            f"{rank} ({what})."
        )
    return ranks


def to_root_rank(root_rank: Any, process_set: ProcessSet, what: str) -> int:
    """Returns `root_rank`; raises as `members_of`, or if it is not in it."""
    members_of(process_set, what)
    return checked_root_rank(root_rank, process_set, f" ({what})")


def _try_encode(obj: Any) -> tuple[int, bytes]:
    # A refusal travels like an object, so that every rank raises it.
    try:
        return _OK, encode(obj)
    except TypeError as error:
        return _UNSUPPORTED, str(error).encode()
    except ValueError as error:
        return _TOO_LARGE, str(error).encode()


def _raise_if_refused(
    statuses: list[int], payloads: list[bytes], ranks: list[int], name: str
) -> None:
    for status, payload, rank in zip(statuses, payloads, ranks, strict=True):
        if status == _OK:
            continue
        text = payload.decode("utf-8", "replace")
        kind = TypeError if status == _UNSUPPORTED else ValueError
        raise kind(f"{text} (rank {rank}, object {name!r})")
