"""Packs functions for ranks, and what they return, by cloudpickle.

Nothing here checks who has packed what: only bytes from a process of this user,
or from a peer that has proved itself, may be unpacked.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from hvd_keras.exceptions import LaunchError


def pack_call(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> bytes:
    """Returns a call as bytes, for `run_packed`."""
    header = {"path": [os.path.abspath(entry) for entry in sys.path]}
    pickled = bytes(_cloudpickle().dumps((function, tuple(args), kwargs)))
    return json.dumps(header).encode() + b"\n" + pickled


def run_packed(call: bytes) -> Any:
    """Makes the call and returns its result."""
    header, _, pickled = call.partition(b"\n")
    # Modules that are found in the caller are found here, too.
    path = json.loads(header)["path"]
    sys.path += [entry for entry in path if entry not in sys.path]
    function, args, kwargs = _cloudpickle().loads(pickled)
    return function(*args, **kwargs)


def pack_value(value: Any, rank: int) -> bytes:
    """Returns what a rank has returned as bytes, for `unpack`."""
    header = {"rank": rank}
    pickled = bytes(_cloudpickle().dumps(value))
    return json.dumps(header).encode() + b"\n" + pickled


def pack_error(error: BaseException, rank: int) -> bytes:
    """Returns an exception of a rank as bytes, for `unpack`."""
    lines = traceback.format_exception(type(error), error, _of_user(error))
    header = {
        "rank": rank,
        "error": "".join(traceback.format_exception_only(error)).strip(),
        "traceback": "".join(lines),
    }
    try:
        pickled = bytes(_cloudpickle().dumps(error))
    except Exception:  # it holds what cannot travel
        pickled = b""
    return json.dumps(header).encode() + b"\n" + pickled


def _of_user(error: BaseException) -> TracebackType | None:
    """Returns the traceback of an exception from the user's first frame on."""
    trace = found = error.__traceback__
    while trace is not None:
        is_ours = trace.tb_frame.f_code.co_filename == __file__
        trace = trace.tb_next
        if is_ours:
            found = trace
    return found


def unpack(packed: bytes) -> tuple[dict[str, Any], Any]:
    """Returns header and value, or exception, of what a rank has packed.

    The header has the rank. Of an exception it has also `error` and
    `traceback`; the exception is None if it could not travel.
    """
    header, _, pickled = packed.partition(b"\n")
    found: dict[str, Any] = json.loads(header)
    if "error" not in found:
        return found, _cloudpickle().loads(pickled)
    try:
        return found, _cloudpickle().loads(pickled) if pickled else None
    except Exception:  # its class is unknown here, or cannot be made so
        return found, None


def _cloudpickle() -> Any:
    try:
        import cloudpickle
    except ImportError:
        raise LaunchError(
            "`cloudpickle` must be installed to send functions to ranks: "
            "pip install '.[run]' in a clone of hvd_keras. Received: no such "
            "module."
        ) from None
    return cloudpickle
