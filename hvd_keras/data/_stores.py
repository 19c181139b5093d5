"""A file of what a rank has read and decoded, for `cache(file)`."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
import zlib

from hvd_keras import basics
from hvd_keras._common import log

# Of an entry: a checksum of the rest, the lengths of its name and data.
_HEAD = struct.Struct("<IQQ")
_VERSION = b"hvdrows1"

_stores: dict[str, Store] = {}


class Store:
    """Data by name, in a file that grows. Threads may share it.

    Who comes second on a host to a file that another process has open reads
    what it can, and keeps nothing.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._places: dict[bytes, tuple[int, int]] | None = None
        self._file = -1
        self._end = 0
        self._is_writer = False

    def find(self, name: bytes) -> bytes:
        """Returns what is kept by a name; nothing if it is not whole."""
        with self._lock:
            if self._places is None:
                self._open()
            assert self._places is not None
            offset, length = self._places.get(name, (0, 0))
        if not length:
            return b""
        data = os.pread(self._file, length, offset)
        head = os.pread(self._file, _HEAD.size, offset - len(name) - _HEAD.size)
        return data if head == _head_of(name, data) else b""

    def keep(self, name: bytes, data: bytes) -> None:
        """Keeps data by a name."""
        with self._lock:
            assert self._places is not None
            if not self._is_writer or name in self._places:
                return
            entry = _head_of(name, data) + name + data
            why = "the disk is full"
            try:
                written = os.pwrite(self._file, entry, self._end)
            except OSError as error:
                written, why = 0, str(error.strerror)
            if written < len(entry):
                self._is_writer = False
                log.notice(f"{self._path}: {why}; no more rows are kept")
                return
            offset = self._end + _HEAD.size + len(name)
            self._places[name] = offset, len(data)
            self._end += len(entry)

    def _open(self) -> None:
        """Opens the file, and finds out where the entries are.

        A last one that was not written to its end is written over.
        """
        self._places = {}
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._file = os.open(self._path, flags, 0o666)
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._is_writer = True
        size = os.fstat(self._file).st_size
        place = len(_VERSION)
        if os.pread(self._file, place, 0) != _VERSION:
            if self._is_writer:
                os.ftruncate(self._file, 0)
                os.pwrite(self._file, _VERSION, 0)
            self._end = place
            return
        while place + _HEAD.size <= size:
            head = os.pread(self._file, _HEAD.size, place)
            _, of_name, of_data = _HEAD.unpack(head)
            begin = place + _HEAD.size + of_name
            if begin + of_data > size:
                break
            name = os.pread(self._file, of_name, place + _HEAD.size)
            self._places[name] = begin, of_data
            place = begin + of_data
        self._end = place


def _head_of(name: bytes, data: bytes) -> bytes:
    lengths = struct.pack("<QQ", len(name), len(data))
    checksum = zlib.crc32(data, zlib.crc32(lengths + name))
    return struct.pack("<I", checksum) + lengths


def of_rank(path: str) -> Store:
    """Returns the store of this rank for the file of a `cache`."""
    if basics.is_initialized() and basics.size() > 1:
        path = f"{path}.rank-{basics.rank()}-of-{basics.size()}"
    else:
        path = f"{path}.rank-0-of-1"
    return _stores.setdefault(os.path.abspath(path), Store(path))
