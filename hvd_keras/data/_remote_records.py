"""TFRecord files that TensorFlow's filesystems read: `gs://`, `s3://`, ...

The core reads what the system has as files. Here single records come over the
network, and blocks in which it is not known where they begin; the core checks
them in memory.

| Private name of TensorFlow | Used to |
|---|---|
| `_pywrap_file_io.BufferedInputStream` | read no more than what is asked for |
"""

from __future__ import annotations

import concurrent.futures
import functools
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_keras import _native
from hvd_keras.data._numbering import Numbering
from hvd_keras.data._opened_files import (
    FilesReader,
    OpenedFile,
    Row,
    blocks_of,
)
from hvd_keras.data._record_index import Index, Scan
from hvd_keras.exceptions import DamagedFileError, InvalidArgumentError

_HEAD, _FOOT = 12, 4  # bytes before and behind the data of a record
_MOST_BLOCKS = 4096  # of a file, in which it is known where records begin

_NUM_REQUESTS = 16  # at once: each waits for the network

Array = np.ndarray[Any, Any]


class RemoteRecordFile(OpenedFile):
    """A TFRecord file without compression; each row is a text scalar."""

    spec = tf.TensorSpec([], tf.string)

    def __init__(self, path: str, num_kept: int) -> None:
        self.path, self.num_kept = path, num_kept
        self.num_bytes = int(tf.io.gfile.stat(path).length)
        self._begins = functools.lru_cache(_MOST_BLOCKS)(self._begins_in)

    def index(self, *, checks: bool) -> tuple[list[tuple[int, int]], int, int]:
        raise NotImplementedError  # `_scanned` makes it

    def read(self, rows: list[int], index: Index) -> list[Row]:
        firsts = blocks_of(index)
        end = index.num_bytes - index.num_lost_bytes
        bounds = np.append(firsts[:, 0], end)
        blocks = firsts[:, 1].searchsorted(rows, side="right") - 1
        # Rows that follow on each other in a block come at once.
        runs: list[tuple[int, list[int]]] = []
        for row, block in zip(rows, blocks.tolist(), strict=True):
            if runs and runs[-1][0] == block and runs[-1][1][-1] == row - 1:
                runs[-1][1].append(row)
            else:
                runs.append((block, [row]))

        def of_run(run: tuple[int, list[int]]) -> list[Row]:
            block, own = run
            begin, behind = bounds[block : block + 2].tolist()
            first = int(firsts[block, 1])
            begins = self._begins(begin, behind, first)
            if own[-1] - first >= len(begins) - 1:
                raise self.damaged(own[-1], begin, "it has changed")
            return self._records(own, begins[own[0] - first :].tolist())

        if len(runs) == 1:
            return of_run(runs[0])
        return [row for of_one in _pool().map(of_run, runs) for row in of_one]

    def _records(self, rows: list[int], begins: list[int]) -> list[Row]:
        """Returns records that follow on each other."""
        data = self._bytes(rows[0], begins[0], begins[len(rows)])
        found: list[Row] = []
        try:
            _, damaged, num_lost = _checked(data)
        except DamagedFileError:
            damaged, num_lost = b"", len(data)
        bad = np.frombuffer(damaged, np.int64).tolist()
        if bad or num_lost:
            place = bad[0] if bad else 0
            raise self.damaged(
                rows[place], begins[place], "it does not match its checksums"
            )
        for number in range(len(rows)):
            begin, end = begins[number] - begins[0], begins[number + 1]
            found.append((data[begin + _HEAD : end - begins[0] - _FOOT],))
        return found

    def _begins_in(self, begin: int, end: int, first: int) -> Array:
        """Returns where the records of a block begin, and the end."""
        data = self._bytes(first, begin, end)
        begins = [0]
        while begins[-1] + _HEAD <= len(data):
            head = data[begins[-1] : begins[-1] + 8]
            size = int.from_bytes(head, "little") + _HEAD + _FOOT
            begins.append(begins[-1] + size)
        if begins[-1] != len(data):
            raise self.damaged(first + len(begins) - 2, begin, "it has changed")
        return np.array(begins, np.int64) + begin

    def _bytes(self, row: int, begin: int, end: int) -> bytes:
        from tensorflow.python.lib.io import _pywrap_file_io

        try:
            # A `GFile` would read half a megabyte.
            stream = _pywrap_file_io.BufferedInputStream(self.path, end - begin)
            stream.seek(begin)
            data: bytes = stream.read(end - begin)
        except tf.errors.OpError as error:
            raise self.damaged(row, begin, error.message) from error
        if len(data) != end - begin:
            raise self.damaged(row, begin, "the file ends in it")
        return data


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(_NUM_REQUESTS)


def _checked(data: bytes) -> tuple[Any, bytes, int]:
    """Returns what the core finds out about records in memory."""
    memory = os.memfd_create("records", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(data)
        return _native.core().index_records(f"/proc/self/fd/{memory}", True)
    finally:
        os.close(memory)


def reader_of(
    paths: Sequence[str], indexes: Sequence[Index], num_kept: int = 1
) -> FilesReader:
    """Returns what reads the records of files by their numbers."""
    numbering = Numbering(indexes)
    return FilesReader(paths, indexes, numbering, RemoteRecordFile, num_kept)


def _scanned(path: str, changed_ns: int, *, checks: bool = False) -> Index:
    """Returns the index of a file, which is copied here for that."""
    with tempfile.NamedTemporaryFile(prefix="hvd_records_") as copy:
        try:
            with tf.io.gfile.GFile(path, "rb") as file:
                shutil.copyfileobj(file, copy, 1 << 23)
        except tf.errors.OpError as error:
            raise InvalidArgumentError(f"{path}: {error.message}") from error
        copy.flush()
        try:
            found, damaged, lost = _native.core().index_records(
                copy.name, checks
            )
        except DamagedFileError as error:
            told = str(error).replace(copy.name, path)
            raise DamagedFileError(told) from None
    num_bytes, num_records, checksum, blocks = found
    return Index(
        num_bytes + lost, changed_ns, num_records, checksum, blocks, damaged,
        lost,
    )  # fmt: skip


RECORDS = Scan("remote", _scanned)
CHECKED_RECORDS = Scan(
    "remote checked", functools.partial(_scanned, checks=True)
)
