"""Files that rank 0 writes for all ranks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

from hvd_keras import basics, objects
from hvd_keras.exceptions import HvdError


def on_rank_zero(name: str, action: Callable[[], Any]) -> Any:
    """Runs `action` on rank 0; all ranks wait and get what it returns.

    Args:
        name: Pairs the call across ranks.
        action: Returns anything that `broadcast_object` takes.

    Raises:
        HvdError: On the other ranks, if `action` raised; on rank 0 it is what
            `action` raised.
    """
    result, error = None, None
    if basics.rank() == 0:
        try:
            result = action()
        except Exception as raised:
            error = raised
    text = None if error is None else f"{type(error).__name__}: {error}"
    result, text = objects.broadcast_object((result, text), name=name)
    if error is not None:
        raise error
    if text is not None:
        raise HvdError(
            f"Rank 0 must succeed, for all ranks, in what {name} does there. "
            f"Received: {text}"
        )
    return result


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Yields the path of a file that replaces `path` when it is complete.

    A process that is killed leaves the old file or the new one, never a part
    of it. The address of an object in a store is yielded as it is: such
    objects are replaced as a whole.
    """
    if "://" in path:
        yield path
        return
    directory, name = os.path.split(path)
    partial = os.path.join(directory, f".partial.{name}")
    try:
        yield partial
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(partial)
        raise
