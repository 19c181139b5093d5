"""Where the records of files are: made once, kept for the next job.

An index has an offset and a number of records for each block of a file, about a
megabyte. It is kept in the user's folder for caches. Beside the data it would
be one more file for who lists `data/*`.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import os
import struct
import zlib
from collections.abc import Callable, Sequence

from hvd_keras import _native
from hvd_keras._common import log
from hvd_keras._common.paths import is_remote, real_path
from hvd_keras.exceptions import InvalidArgumentError

# Version, checksum of the rest; then bytes and time of the file, the number of
# records, a checksum of the first one, and bytes that are lost and that damaged
# records take. These and blocks follow.
_HEAD = struct.Struct("<8sI")
_FORM = struct.Struct("<qqqIqq")
_VERSION = b"hvdrec02"

_NUM_THREADS = 8  # that read headers: each waits for its disk
# Of this process, by where it is kept; None: it cannot be known on all ranks.
_known: dict[str, Index | None] = {}


@dataclasses.dataclass(frozen=True)
class Index:
    """Where the records of a file are.

    Args:
        num_bytes: Those of the file.
        changed_ns: When it was changed last.
        num_records: Its number of records.
        first_checksum: A checksum of the first record.
        blocks: For each block, where it begins and the number of its first
            record, 8 bytes each.
        damaged: The numbers of damaged records, 8 bytes each, if a check has
            looked for them.
        num_lost_bytes: What is left of the file where it ends too soon, or
            where a check has found a damaged length.
    """

    num_bytes: int
    changed_ns: int
    num_records: int
    first_checksum: int
    blocks: bytes = dataclasses.field(repr=False)
    damaged: bytes = b""
    num_lost_bytes: int = 0

    @property
    def fingerprint(self) -> int:
        """23 bits that differ if the records do, wherever the files are."""
        found = zlib.crc32(self.blocks + self.damaged, self.first_checksum)
        return zlib.crc32(b"%d" % self.num_bytes, found) & 0x7FFFFF

    def for_core(self) -> tuple[int, int, int, bytes]:
        """Returns it as `_core.add_records` takes it."""
        return (
            self.num_bytes - self.num_lost_bytes,
            self.num_records,
            self.first_checksum,
            self.blocks,
        )


@dataclasses.dataclass(frozen=True)
class Scan:
    """How indexes of a kind of file are made.

    Args:
        name: Tells them from others of the same file.
        make: Makes that of a path; gets the time of its last change too.
    """

    name: str
    make: Callable[[str, int], Index]


def _scanned(path: str, changed_ns: int, *, checks: bool = False) -> Index:
    found, damaged, num_lost = _native.core().index_records(path, checks)
    num_bytes, num_records, checksum, blocks = found
    return Index(
        num_bytes + num_lost,
        changed_ns,
        num_records,
        checksum,
        blocks,
        damaged,
        num_lost,
    )


TFRECORDS = Scan("", _scanned)
# It reads all data, and leaves out what is damaged.
CHECKED_TFRECORDS = Scan("checked", functools.partial(_scanned, checks=True))


def indexes_of(
    paths: Sequence[str], scan: Scan = TFRECORDS
) -> tuple[list[Index], list[str]]:
    """Returns the indexes of files, and which have changed since the last one.

    Those that are not known are made, and kept if that can be.

    Raises:
        InvalidArgumentError: One is no regular file, or cannot be read.
        DamagedFileError: One is not whole, or no TFRecord file.
    """
    with concurrent.futures.ThreadPoolExecutor(_NUM_THREADS) as pool:
        found = list(pool.map(functools.partial(_index_of, scan=scan), paths))
    changed = [
        path
        for path, (_, is_changed) in zip(paths, found, strict=True)
        if is_changed
    ]
    return [index for index, _ in found], changed


def _size_and_time(path: str) -> tuple[int, int]:
    """Returns the bytes of a file, and when it was changed, in nanoseconds.

    Raises:
        OSError: It cannot be read.
    """
    if not is_remote(path):
        found = os.stat(path)
        return found.st_size, found.st_mtime_ns
    import tensorflow as tf

    try:
        told = tf.io.gfile.stat(path)
    except tf.errors.OpError as error:
        raise OSError(0, error.message) from error
    return int(told.length), int(told.mtime_nsec)


def _index_of(path: str, scan: Scan) -> tuple[Index, bool]:
    """Returns the index of a file, and whether it is in place of another."""
    real = real_path(path)
    place = place_of(real, scan)
    before = _known[place] if place in _known else _read(place)
    if place in _known and before is None:
        raise InvalidArgumentError(f"{path}: not known on all ranks")
    if before is not None and _is_of(before, real):
        _known[place] = before
        return before, False
    try:  # before: what changes while it is read makes the index an old one
        _, changed_ns = _size_and_time(real)
    except OSError as error:
        raise InvalidArgumentError(f"{path}: {error.strerror}") from error
    index = _known[place] = scan.make(real, changed_ns)
    _keep(place, index)
    return index, before is not None


def forget(paths: Sequence[str], scan: Scan = TFRECORDS) -> None:
    """Drops what this process knows of files; indexes are still kept."""
    for path in paths:
        _known.pop(place_of(real_path(path), scan), None)


def learn(path: str, data: bytes | None, scan: Scan = TFRECORDS) -> None:
    """Takes the index of a file that another rank has found.

    Args:
        path: The file on this rank, maybe a copy that has a time of its own.
        data: The index, encoded; None: ranks do not all have one.
        scan: What has made it.
    """
    real = real_path(path)
    index = None if data is None else decode(data)
    if index is not None:
        with contextlib.suppress(OSError):
            _, changed_ns = _size_and_time(real)
            index = dataclasses.replace(index, changed_ns=changed_ns)
    _known[place_of(real, scan)] = index


def tell_changed(paths: Sequence[str]) -> None:
    """Says which files got a new index in place of an old one."""
    if paths:
        more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
        log.info(f"indexed {paths[0]}{more} anew: changed since the last time")


def encode(index: Index) -> bytes:
    """Returns an index as a file keeps it."""
    form = _FORM.pack(
        index.num_bytes,
        index.changed_ns,
        index.num_records,
        index.first_checksum,
        index.num_lost_bytes,
        len(index.damaged),
    )
    body = form + index.damaged + index.blocks
    return _HEAD.pack(_VERSION, zlib.crc32(body)) + body


def decode(data: bytes) -> Index | None:
    """Returns the index of a file's content; None if that is none."""
    head, body = data[: _HEAD.size], data[_HEAD.size :]
    if len(body) < _FORM.size or head != _HEAD.pack(_VERSION, zlib.crc32(body)):
        return None
    form, rest = body[: _FORM.size], body[_FORM.size :]
    num_bytes, changed_ns, count, checksum, lost, size = _FORM.unpack(form)
    blocks, damaged = rest[size:], rest[:size]
    return Index(num_bytes, changed_ns, count, checksum, blocks, damaged, lost)


def place_of(real_path: str, scan: Scan = TFRECORDS) -> str:
    """Returns where the index of a file is kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    of_file = os.fsencode(real_path) + scan.name.encode()
    name = hashlib.sha256(of_file).hexdigest()[:40]
    return os.path.join(cache, "hvd_keras", "records", name[:2], name)


def _is_of(index: Index, path: str) -> bool:
    """Whether the file has not changed since."""
    with contextlib.suppress(OSError):
        return _size_and_time(path) == (index.num_bytes, index.changed_ns)
    return False


def _read(place: str) -> Index | None:
    with contextlib.suppress(OSError), open(place, "rb") as file:
        return decode(file.read())
    return None


def _keep(place: str, index: Index) -> None:
    """Keeps an index for other processes, which may do so at the same time."""
    partial = f"{place}.{os.getpid()}.{os.urandom(4).hex()}"
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with open(partial, "wb") as file:
            file.write(encode(index))
        os.replace(partial, place)
