"""Tars of WebDataset: a row is the members that share a key."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
import tensorflow as tf

from hvd_keras import _native
from hvd_keras.data._opened_files import Blocks, OpenedFile, Row, blocks_of
from hvd_keras.data._record_index import Index

_KEY = "__key__"
# Where it begins, its key; of each member its suffix, where its header is,
# where its data, and how many bytes.
_TarRow = tuple[int, bytes, dict[str, tuple[int, int, int]]]


class TarFile(OpenedFile):
    """A tar without compression."""

    def __init__(self, path: str, num_kept: int) -> None:
        super().__init__(path, num_kept)
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # Reads no more than what it is asked for.
        self._exact = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        os.posix_fadvise(self._exact, 0, 0, os.POSIX_FADV_RANDOM)
        # Headers are found again: to keep all would take much memory.
        self._rows_of = functools.lru_cache(maxsize=256)(self._rows_between)

    def __del__(self) -> None:
        for name in "_fd", "_exact":
            if hasattr(self, name):
                os.close(getattr(self, name))

    def index(self, *, checks: bool) -> tuple[Blocks, int, int]:
        num_bytes, num_rows, _, blocks = _native.core().index_tar(
            os.fsencode(self.path), checks
        )
        return np.frombuffer(blocks, np.int64), num_rows, num_bytes

    @functools.cached_property
    def spec(self) -> Any:
        _, _, members = self._rows_between(0, 0, 1)[0]
        names = sorted([_KEY, *members])
        return {name: tf.TensorSpec([], tf.string) for name in names}

    def read(self, rows: list[int], index: Index) -> list[Row]:
        firsts = blocks_of(index)
        # Of rows that follow on each other, another rank has the next ones.
        is_run = len(rows) > 1 and rows[-1] - rows[0] == len(rows) - 1
        fd = self._exact if is_run else self._fd
        found = []
        for number in rows:
            block = int(firsts[:, 1].searchsorted(number, side="right")) - 1
            is_last = block + 1 == len(firsts)
            end = (
                index.num_bytes - index.num_lost_bytes
                if is_last
                else int(firsts[block + 1, 0])
            )
            begin, first = firsts[block].tolist()
            of_block = self._rows_of(begin, first, end)
            if number - first >= len(of_block):
                raise self.damaged(number, begin, "it has changed")
            found.append(self._parts_of(of_block[number - first], number, fd))
        return found

    def _parts_of(self, row: _TarRow, number: int, fd: int) -> Row:
        begin, key, members = row
        parts = []
        for name in self.spec:
            if name == _KEY:
                parts.append(key)
            elif name not in members:
                raise self.damaged(number, begin, f"it has no .{name}")
            else:
                header, offset, num_bytes = members[name]
                data = os.pread(fd, num_bytes, offset)
                if len(data) != num_bytes:
                    raise self.damaged(number, header, "the file ends in it")
                parts.append(data)
        return parts

    def _rows_between(self, begin: int, first: int, end: int) -> list[_TarRow]:
        rows = _native.core().tar_rows(
            os.fsencode(self.path), begin, first, end
        )
        return [
            (begin, key, {member[0]: member[1:] for member in members})
            for begin, key, members in rows
        ]
