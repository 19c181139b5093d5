"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import fnmatch
import glob
import os
import re
import stat
from collections.abc import Iterator

from hvd_keras._common import owners
from hvd_keras._common.paths import is_remote
from hvd_keras.exceptions import InvalidArgumentError

_PARTIAL = re.compile(r"\.partial\.([0-9a-f]{8}-\d+-\d+)\.[0-9a-f]{8}\.(.+)")
_BRACES = re.compile(r"\{[^{}]*\}")
# What a process of another host has not touched for so long is left over.
_LEFT_OVER_SECONDS = 3600.0


@contextlib.contextmanager
def replacing(path: str, *, keeps_previous: bool = False) -> Iterator[str]:
    """Yields the path of a file that replaces `path` when it is complete.

    A killed process leaves the old file or the new one, always whole. If
    nothing is written, as by a rank that leaves it to another, the old file
    stays. Several processes may write at a time: each has a file of its own,
    and the last one stays. A link is followed. The address of an object in a
    store is yielded unchanged: stores replace objects as a whole.

    Args:
        path: The file.
        keeps_previous: Whether the old file gets the name `previous(path)`.

    Raises:
        OSError: It cannot be written; the old one stays. It names the path.
    """
    if is_remote(path):
        yield path
        return
    path = os.path.realpath(path)
    directory, name = os.path.split(path)
    remove_left_over(path)
    own = f".partial.{owners.me().name}.{os.urandom(4).hex()}.{name}"
    partial = os.path.join(directory, own)
    try:
        yield partial
        if not os.path.exists(partial):
            return
        with open(partial, "rb") as file:
            os.fsync(file.fileno())
        if keeps_previous:
            with contextlib.suppress(FileNotFoundError):
                os.replace(path, previous(path))
        os.replace(partial, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.remove(partial)
        if isinstance(error, OSError):
            raise _naming(error, path) from error
        raise


def replaced_by(path: str) -> str:
    """Returns the file that a file of `replacing` replaces; "": it is none."""
    directory, name = os.path.split(path)
    found = _PARTIAL.fullmatch(name)
    return "" if found is None else os.path.join(directory, found[2])


def _naming(error: OSError, path: str) -> OSError:
    """Returns an error that names the file that was to be written."""
    cause: BaseException | None = error
    while cause is not None:  # such as a full disk, behind a library's error
        if isinstance(cause, OSError) and cause.errno is not None:
            return OSError(cause.errno, os.strerror(cause.errno), path)
        cause = cause.__cause__ or cause.__context__
    return OSError(f"{path!r} cannot be written: {error}")


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


def is_partial(path: str) -> bool:
    """Whether `replacing` has yielded this path."""
    return _PARTIAL.fullmatch(os.path.basename(path)) is not None


def remove_left_over(path: str, *, is_owned: bool = False) -> None:
    """Removes what dead processes have written of a file.

    Args:
        path: The file. Parts in braces stand for anything, as in the paths of
            ModelCheckpoint.
        is_owned: Whether this process is the only one that may write it.
    """
    pattern = _BRACES.sub("*", glob.escape(os.path.realpath(path)))
    folders, name = os.path.split(pattern)
    with contextlib.suppress(OSError):
        for folder in glob.glob(folders):
            for found in map(_PARTIAL.fullmatch, os.listdir(folder)):
                if found is not None and fnmatch.fnmatchcase(found[2], name):
                    partial = os.path.join(folder, found[0])
                    _remove_if_left_over(partial, found[1], is_owned)


def _remove_if_left_over(partial: str, writer: str, is_owned: bool) -> None:
    with contextlib.suppress(OSError):
        changed_at = os.stat(partial).st_mtime
        folder = os.path.dirname(partial)
        if owners.Writer.of_name(writer).has_ended(
            lambda: (
                is_owned
                or owners.age_seconds(changed_at, folder) > _LEFT_OVER_SECONDS
            )
        ):
            os.remove(partial)


def previous(path: str) -> str:
    """Returns where `replacing` keeps the file before."""
    root, extension = os.path.splitext(path)
    return f"{root}.previous{extension}"


def check_place(path: str) -> None:
    """Checks that a path can become that of a file.

    Raises:
        InvalidArgumentError: Something else is there.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFLNK: "a link"}
        kind = kinds.get(stat.S_IFMT(mode), "no file")
        raise InvalidArgumentError(
            f"{path!r} must be a file, or absent. Received: {kind}; move it "
            "away."
        )
