"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator


@contextlib.contextmanager
def replacing(path: str, *, writer: str = "") -> Iterator[str]:
    """Yields the path of a file that replaces `path` when it is complete.

    A killed process leaves the old file or the new one, always whole. If
    nothing is written, as by a rank that leaves it to another, the old file
    stays. The address of an object in a store is yielded unchanged: stores
    replace objects as a whole.

    Args:
        path: The file.
        writer: Tells this process from others that write `path` at the time.
    """
    if "://" in path:
        yield path
        return
    directory, name = os.path.split(path)
    partial = os.path.join(directory, f".partial{writer}.{name}")
    try:
        yield partial
        if not os.path.exists(partial):
            return
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(partial)
        raise


def write(path: str, data: bytes) -> None:
    """Replaces a file by one that holds `data`.

    Raises:
        OSError: It cannot be written; the old one stays.
    """
    with replacing(path) as partial, open(partial, "wb") as file:
        file.write(data)


def read_bounded(path: str, most: int) -> bytes | None:
    """Returns the content of a file that others have made.

    Args:
        path: The file.
        most: The bytes that it may have.

    Returns:
        The content; None: there is no regular file that can be read, or it has
        more bytes.
    """
    try:
        # A pipe would have us wait for who writes into it.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_size > most:
                return None
            data = file.read(most + 1)
    except OSError:
        return None
    return data if len(data) <= most else None
