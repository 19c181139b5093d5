"""Files that rank 0 writes for all ranks."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from hvd_keras import _native, basics, objects
from hvd_keras._job import state
from hvd_keras._job.hosts import partition
from hvd_keras.exceptions import HvdError


def on_rank_zero(name: str, action: Callable[[], Any]) -> Any:
    """Runs `action` on rank 0; all ranks wait and get its result.

    Args:
        name: Pairs the call across ranks.
        action: Returns anything that `broadcast_object` takes.

    Raises:
        HvdError: On the other ranks, if `action` raised. Rank 0 raises what
            `action` raised.
    """
    result, error = None, None
    if basics.rank() == 0:
        with _others_waiting(name):
            try:
                partition.check_may_write(name)
                result = action()
            except Exception as raised:
                error = raised
    else:
        while _tell_whether_working(name):
            pass
    text = None if error is None else f"{type(error).__name__}: {error}"
    result, text = objects.broadcast_object((result, text), name=name)
    if error is not None:
        raise error
    if text is not None:
        raise HvdError(
            f"{name} works on rank 0 for all ranks, and must succeed there. "
            f"Received: {text}"
        )
    return result


@contextlib.contextmanager
def _others_waiting(name: str) -> Iterator[None]:
    """Tells the other ranks every few seconds that rank 0 is at work.

    Otherwise rank 0 would count as stalled while it writes a large model.
    """
    timeout_seconds = state.config().stall_timeout_seconds or math.inf
    is_done = threading.Event()

    def tell() -> None:
        with contextlib.suppress(HvdError):  # the next call raises it too
            while not is_done.wait(min(5.0, timeout_seconds / 4)):
                _tell_whether_working(name, True)

    thread = threading.Thread(target=tell, name="hvd_keras rank 0 at work")
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
    _tell_whether_working(name, False)


def _tell_whether_working(name: str, is_working: bool = False) -> bool:
    """Returns the value that rank 0 passes."""
    mine = np.array([is_working], np.uint8)
    ((answer,),) = _native.core().broadcast(f"{name}/working", [mine], 0)
    return bool(answer)
