"""ArrayRecord files, by the reader of their project."""

from __future__ import annotations

import threading
from typing import Any

import tensorflow as tf

from hvd_keras.data._opened_files import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    OpenedFile,
    Row,
)
from hvd_keras.data._record_index import Index


class ArrayRecordFile(OpenedFile):
    """An ArrayRecord file; each row is a text scalar."""

    spec = tf.TensorSpec([], tf.string)

    def __init__(self, path: str, num_kept: int) -> None:
        from array_record.python import array_record_module

        super().__init__(path, num_kept)
        self._lock = threading.Lock()
        # It would read ahead what other ranks have.
        self._reader: Any = array_record_module.ArrayRecordReader(
            path, options="readahead_buffer_size:0"
        )
        if not self._reader.ok():
            raise self.damaged(0, 0, "it is not whole, or no ArrayRecord file")

    def index(self, *, checks: bool) -> tuple[list[tuple[int, int]], int, int]:
        num_rows = self._reader.num_records()
        of_rows = BLOCK_BYTES * num_rows // max(self.num_bytes, 1)
        step = max(of_rows, BLOCK_ROWS)
        blocks = [(0, first) for first in range(0, num_rows, step)]
        return blocks, num_rows, self.num_bytes

    def read(self, rows: list[int], index: Index) -> list[Row]:
        try:
            with self._lock:
                return [(record,) for record in self._reader.read(rows)]
        except (ValueError, RuntimeError, IndexError) as error:
            raise self.damaged(rows[0], 0, str(error)) from error
