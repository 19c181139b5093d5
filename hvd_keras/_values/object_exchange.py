"""Sends Python objects from rank to rank: their lengths, then bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_keras import _native
from hvd_keras._values import refusals
from hvd_keras._values.members import members_of, to_root_rank
from hvd_keras._values.object_format import MAX_BYTES, decode, encode
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet

_OK = 0
_UNSUPPORTED = 1  # the payload is the text of a TypeError
_TOO_LARGE = 2  # the payload is the text of a ValueError


def broadcast(
    obj: Any, root_rank: int, name: str, process_set: ProcessSet
) -> Any:
    """Returns the object of `root_rank`. See `objects.broadcast_object`."""
    with refusals.told("broadcast", f"{name}/header", process_set):
        root_rank = to_root_rank(root_rank, process_set, f"object {name!r}")
    process_set_id = process_set.process_set_id
    status, payload = _OK, b""
    if _native.core().rank() == root_rank:
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
    if _native.core().rank() == root_rank:
        data = np.frombuffer(payload, np.uint8)
    (data,) = _native.core().broadcast(
        f"{name}/payload", [data], root_rank, process_set_id
    )
    _raise_if_refused([status], [data.tobytes()], [root_rank], name)
    return decode(data.tobytes())


def allgather(obj: Any, name: str, process_set: ProcessSet) -> list[Any]:
    """Returns the objects of all ranks. See `objects.allgather_object`."""
    ranks = members_of(process_set, f"object {name!r}")
    status, payload = _try_encode(obj)
    header = np.array([status, len(payload)], np.int64).tobytes()
    mine = np.frombuffer(header + payload, np.uint8)
    (data,) = _native.core().allgather(name, [mine], process_set.process_set_id)
    statuses, payloads = [], []
    while len(data):
        status, num_bytes = map(int, data[: len(header)].view(np.int64))
        data = data[len(header) :]
        statuses.append(status)
        payloads.append(data[:num_bytes].tobytes())
        data = data[num_bytes:]
    _raise_if_refused(statuses, payloads, ranks, name)
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
