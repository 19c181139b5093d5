"""The numbers of the rows of several files."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from hvd_keras.data._record_index import Index

Array = np.ndarray[Any, Any]
# As the core has it: a fingerprint of the data stands above.
_NUMBER_BITS = 40


class Numbering:
    """Which record of which file a row is; damaged records are no rows.

    Args:
        indexes: Those of the files.
    """

    def __init__(self, indexes: Sequence[Index]) -> None:
        counts = [index.num_records for index in indexes]
        self._firsts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        damaged = self._of_all(indexes, [each.damaged for each in indexes])
        # The row that would come where a damaged record stands.
        self._gaps = damaged - np.arange(len(damaged))
        self.num_damaged = len(damaged)
        self.num_rows = int(self._firsts[-1]) - len(damaged)
        blocks = self._of_all(
            indexes,
            [
                np.frombuffer(each.blocks, np.int64)[1::2].tobytes()
                for each in indexes
            ],
        )
        rows = blocks - np.searchsorted(damaged, blocks)
        # Rows with which blocks begin, and the number of all.
        self.begins = np.append(np.unique(rows), self.num_rows)
        if self.num_rows and self.begins[-2] == self.num_rows:
            self.begins = self.begins[:-1]  # a block of damaged records alone
        prints = np.array([index.fingerprint for index in indexes], np.int64)
        fingerprint = zlib.crc32(prints.tobytes()) & 0x7FFFFF
        self._offset = fingerprint << _NUMBER_BITS

    def _of_all(self, indexes: Sequence[Index], parts: list[bytes]) -> Array:
        """Returns numbers of records in their files as those in all files."""
        return np.concatenate(
            [
                np.zeros(0, np.int64),
                *(
                    np.frombuffer(part, np.int64) + first
                    for part, first in zip(
                        parts, self._firsts[:-1], strict=True
                    )
                ),
            ]
        )

    def numbers_of(self, rows: Array) -> Array:
        """Returns what stands for rows: numbers that differ if the data do."""
        shift = np.searchsorted(self._gaps, rows, side="right")
        return rows + shift + self._offset

    def places_of(self, numbers: Array) -> tuple[Array, Array]:
        """Returns the file of each number, and the record in the file."""
        records = numbers & ((1 << _NUMBER_BITS) - 1)
        files = np.searchsorted(self._firsts, records, side="right") - 1
        return files, records - self._firsts[files]
