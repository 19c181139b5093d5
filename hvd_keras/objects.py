"""Python objects from rank to rank, without pickle.

Both functions go through the core's blocking collectives on host memory and
not through TensorFlow ops: they work before TensorFlow is imported, in eager
code, while a `tf.function` is traced and in TF1-style graphs alike, and their
bytes never pass a device. They are for small things: settings, histories,
names. For weights there is `broadcast_variables`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_keras import _native, basics
from hvd_keras._object_format import MAX_BYTES, decode, encode
from hvd_keras.exceptions import InvalidArgumentError

_OK = 0
_UNSUPPORTED = 1  # the payload is the text of a TypeError
_TOO_LARGE = 2  # the payload is the text of a ValueError


def broadcast_object(
    obj: Any, root_rank: int = 0, *, name: str | None = None
) -> Any:
    """Returns the object of `root_rank`, on every rank.

    Objects may be built of None, bool, int, float, complex, str, bytes, list,
    tuple, dict, set, frozenset, numpy arrays and scalars. TensorFlow tensors
    and variables arrive as numpy arrays. Nothing that is received is executed.

    Args:
        obj: The object on `root_rank`; ignored on the others.
        root_rank: The rank whose object all get.
        name: Pairs this call across ranks. Calls without one pair in order.

    Returns:
        A copy of the object of `root_rank`, also on `root_rank` itself.

    Raises:
        TypeError: The object holds a type that has no form on the wire; on
            all ranks, with the type and its place in the object.
        InvalidArgumentError: `root_rank` is no rank.
        PeerLostError: A rank left before all had answered.

    Example:

    >>> hvd.broadcast_object({"epoch": 3} if hvd.rank() == 0 else None)
    {'epoch': 3}
    """
    name = name or "broadcast_object"
    if not 0 <= root_rank < basics.size():
        raise InvalidArgumentError(
            f"`root_rank` must be in [0, {basics.size()}). Received: "
            f"root_rank={root_rank} (rank {basics.rank()}, object {name!r})."
        )
    status, payload = _OK, b""
    if basics.rank() == root_rank:
        status, payload = _try_encode(obj)
    header = np.array([status, len(payload)], np.int64)
    (header,) = _native.core().broadcast(f"{name}/header", [header], root_rank)
    status, num_bytes = (int(number) for number in header)
    if not 0 <= num_bytes <= MAX_BYTES:
        raise InvalidArgumentError(
            f"An object must take at most {MAX_BYTES} bytes. Received: "
            f"{num_bytes} bytes announced by rank {root_rank} ({name!r})."
        )
    data = np.zeros(num_bytes, np.uint8)
    if basics.rank() == root_rank:
        data = np.frombuffer(payload, np.uint8)
    (data,) = _native.core().broadcast(f"{name}/payload", [data], root_rank)
    _raise_if_refused([status], [data.tobytes()], [root_rank], name)
    return decode(data.tobytes())


def allgather_object(obj: Any, *, name: str | None = None) -> list[Any]:
    """Returns the objects of all ranks, in order of rank.

    Args:
        obj: This rank's object, of the types that `broadcast_object` takes.
        name: Pairs this call across ranks. Calls without one pair in order.

    Returns:
        A list as long as the world size; copies, this rank's own included.

    Raises:
        TypeError: An object holds a type that has no form on the wire; on all
            ranks, with the rank, the type and its place in the object.
        PeerLostError: A rank left before all had answered.

    Example, on 2 ranks:

    >>> hvd.allgather_object(("loss", 0.5 * hvd.rank()))
    [('loss', 0.0), ('loss', 0.5)]
    """
    name = name or "allgather_object"
    status, payload = _try_encode(obj)
    header = np.array([[status, len(payload)]], np.int64)
    (headers,) = _native.core().allgather(f"{name}/header", [header])
    data = np.frombuffer(payload, np.uint8)
    (data,) = _native.core().allgather(f"{name}/payload", [data])
    ends = np.cumsum(headers[:, 1])
    payloads = [
        data[end - num_bytes : end].tobytes()
        for end, num_bytes in zip(ends, headers[:, 1], strict=True)
    ]
    statuses = [int(status) for status in headers[:, 0]]
    _raise_if_refused(statuses, payloads, list(range(len(payloads))), name)
    return [decode(payload) for payload in payloads]


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
