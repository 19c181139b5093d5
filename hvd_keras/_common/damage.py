"""Damaged files: how they are told, and older ones taken instead."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterable
from typing import TypeVar

from hvd_keras._common import log
from hvd_keras.exceptions import DamagedFileError

_Content = TypeVar("_Content")


def put_aside(path: str) -> str:
    """Returns where `read_newest` puts a damaged file."""
    return f"{path}.damaged"


def read_newest(
    paths: Iterable[str], read: Callable[[str], _Content]
) -> _Content | None:
    """Returns the content of the first file that is whole.

    A damaged one before it is put aside, and told.

    Args:
        paths: The newest one first; they may be absent.
        read: Returns the content of a file. An error without a path says that
            it is damaged.

    Returns:
        What `read` has returned; None if there is no file.

    Raises:
        DamagedFileError: No file is whole. It tells of the newest one.
        OSError: A file cannot be read.
    """
    broken: dict[str, Exception] = {}
    for path in paths:
        try:
            content = read(path)
        except FileNotFoundError:
            continue
        except MemoryError:
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.filename is not None:
                raise
            broken[path] = error
        else:
            for other, why in broken.items():
                log.notice(
                    f"{describe(other, why)}. Going on from the one before, "
                    f"{path!r}; the damaged one is now {put_aside(other)!r}"
                )
                os.replace(other, put_aside(other))
            return content
    for path, why in broken.items():
        raise DamagedFileError(
            f"{describe(path, why)}. Remove it to begin anew, or put a copy "
            "of it there."
        ) from why
    return None


def check_zip(path: str) -> None:
    """Compares a zip file with its checksums.

    Raises:
        DamagedFileError: It says what is wrong, but not where.
    """
    try:
        with zipfile.ZipFile(path) as file:
            wrong = file.testzip()
    except zipfile.BadZipFile:
        raise DamagedFileError("it has no end, or is another file") from None
    if wrong is not None:
        raise DamagedFileError(f"the checksum of its part {wrong!r} is wrong")


def describe(path: str, error: Exception) -> str:
    """Returns what is wrong with a file, as a clause."""
    num_bytes = os.stat(path).st_size
    reason = "its structure is wrong"
    if isinstance(error, DamagedFileError):
        reason = str(error)
    elif num_bytes == 0:
        reason = "it is empty"
    return f"{path!r} is damaged: {reason} ({num_bytes} bytes)"
