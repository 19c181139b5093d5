"""Rows of files that Python reads, by their numbers."""

from __future__ import annotations

import abc
import contextlib
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_keras._common.python_calls import call_on_arrays
from hvd_keras.data._numbering import Numbering
from hvd_keras.data._record_index import Index
from hvd_keras.exceptions import DamagedFileError, InvalidArgumentError

Array = np.ndarray[Any, Any]
Row = Sequence[Any]  # the parts of a row, flat
Blocks = Array | list[tuple[int, int]]

_NUM_OPENED = 64
BLOCK_BYTES, BLOCK_ROWS = 1 << 20, 4  # as the core has it


class OpenedFile(abc.ABC):
    """A file whose rows have numbers. Several threads may read it.

    Args:
        path: The file.
        num_kept: How many blocks it may keep in memory.
    """

    def __init__(self, path: str, num_kept: int) -> None:
        self.path, self.num_kept = path, num_kept
        self.num_bytes = os.path.getsize(path)

    @abc.abstractmethod
    def index(self, *, checks: bool) -> tuple[Blocks, int, int]:
        """Returns blocks, the number of rows and the bytes that have them.

        Blocks are (any number that tells something of them, first row).

        Raises:
            DamagedFileError: The file is not whole, and this does not check.
        """

    @property
    @abc.abstractmethod
    def spec(self) -> Any:
        """What rows are."""

    @abc.abstractmethod
    def read(self, rows: list[int], index: Index) -> list[Row]:
        """Returns some rows; numbers ascend.

        Raises:
            DamagedFileError: They are not what was written.
        """

    def damaged(self, row: int, offset: int, what: str) -> DamagedFileError:
        return DamagedFileError(
            f"{self.path}: record {row}, at byte {offset}: {what}"
        )


Open = Callable[[str, int], OpenedFile]


def blocks_of(index: Index) -> Array:
    """Returns (a number, first row) of each block."""
    return np.frombuffer(index.blocks, np.int64).reshape(-1, 2)


def scanned(
    path: str, changed_ns: int, *, open_file: Open, checks: bool = False
) -> Index:
    """Returns the index of a file; a check leaves out damaged rows."""
    num_bytes = os.path.getsize(path)
    try:
        file = open_file(path, 1)
        blocks, num_rows, num_good = file.index(checks=checks)
    except DamagedFileError:
        if not checks:
            raise
        return Index(num_bytes, changed_ns, 0, 0, b"", b"", num_bytes)
    except OSError as error:
        raise InvalidArgumentError(f"{path}: {error}") from error
    index = Index(
        num_bytes,
        changed_ns,
        num_rows,
        0,
        np.array(blocks, np.int64).tobytes(),
        b"",
        num_bytes - num_good,
    )
    if not checks:
        return index
    damaged = [
        row
        for begin, end in _bounds_of(index)
        if not _can_read(file, range(begin, end), index)
        for row in range(begin, end)
        if not _can_read(file, range(row, row + 1), index)
    ]
    bad = np.array(damaged, np.int64).tobytes()
    return Index(
        num_bytes, changed_ns, num_rows, 0, index.blocks, bad,
        index.num_lost_bytes,
    )  # fmt: skip


def _bounds_of(index: Index) -> Iterator[tuple[int, int]]:
    firsts = [*blocks_of(index)[:, 1].tolist(), index.num_records]
    yield from itertools.pairwise(firsts)


def _can_read(file: OpenedFile, rows: range, index: Index) -> bool:
    with contextlib.suppress(DamagedFileError):
        file.read(list(rows), index)
        return True
    return False


class FilesReader:
    """Reads the rows of several files.

    Args:
        paths: The files.
        indexes: Theirs.
        numbering: Tells which row of which file a number means.
        open_file: Opens one.
        num_kept: How many blocks each may keep in memory.
    """

    def __init__(
        self,
        paths: Sequence[str],
        indexes: Sequence[Index],
        numbering: Numbering,
        open_file: Open,
        num_kept: int,
    ) -> None:
        self._indexes, self._numbering = indexes, numbering

        @functools.lru_cache(maxsize=_NUM_OPENED)
        def opened(file: int) -> OpenedFile:
            return open_file(paths[file], num_kept)

        self._opened = opened
        (file,), _ = numbering.places_of(numbering.numbers_of(np.zeros(1, int)))
        self._spec = opened(int(file)).spec

    def fetch(self, numbers: tf.Tensor) -> Any:
        """Returns the rows of numbers, in a graph."""
        flat = tf.nest.flatten(self._spec)
        parts = call_on_arrays(
            self._read,
            [tf.reshape(numbers, [-1])],
            [spec.dtype for spec in flat],
        )
        shaped = []
        for part, spec in zip(parts, flat, strict=True):
            shape = tf.concat([tf.shape(numbers), spec.shape], 0)
            rows = tf.reshape(part, shape)
            rows.set_shape(numbers.shape.concatenate(spec.shape))
            shaped.append(rows)
        return tf.nest.pack_sequence_as(self._spec, shaped)

    def _read(self, numbers: Array) -> list[Array]:
        files, records = self._numbering.places_of(numbers)
        rows: list[Row] = [()] * len(numbers)
        for file in np.unique(files):
            places = np.flatnonzero(files == file)
            places = places[np.argsort(records[places], kind="stable")]
            found = self._opened(int(file)).read(
                records[places].tolist(), self._indexes[file]
            )
            for place, row in zip(places, found, strict=True):
                rows[place] = row
        return [
            _stacked([row[part] for row in rows], spec)
            for part, spec in enumerate(tf.nest.flatten(self._spec))
        ]


def _stacked(values: list[Any], spec: tf.TensorSpec) -> Array:
    if spec.dtype != tf.string:
        shape = [len(values), *spec.shape]
        return np.array(values, spec.dtype.as_numpy_dtype).reshape(shape)
    stacked = np.empty(len(values), object)
    stacked[:] = values
    return stacked
