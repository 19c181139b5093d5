"""Shares of data sets that are read by the numbers of their rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras

from hvd_keras.data import _structures
from hvd_keras.data._deal import Deal
from hvd_keras.data._pass import Pass
from hvd_keras.data._py_dataset import weighted
from hvd_keras.data._py_share import RowShare
from hvd_keras.data._readers import Reader
from hvd_keras.data.position import Handle


def describe(reader: Reader) -> list[Any]:
    """Returns what must be equal on all ranks: types, shapes, first rows."""
    return [
        [part.dtype.name, list(part.shape[1:]), _structures.checksum_of(part)]
        for part in keras.tree.flatten(reader.first_rows)
    ]


class LoadedRows(RowShare):
    """This rank's batches of rows that a reader reads ahead.

    Args:
        reader: Reads rows by their numbers.
        handle: Says where an iteration begins, and for which ranks.
        deal: Decides about the form of the batches.
        order: `shuffle` and `seed`, see `PyShare`.
    """

    def __init__(
        self, reader: Reader, handle: Handle, deal: Deal, **order: Any
    ) -> None:
        self._reader = reader
        self._read: Iterator[Any] | None = None
        self._next = 0  # the step that is read next
        super().__init__(handle, deal, reader.num_rows, **order)

    def __getitem__(self, index: int) -> Any:
        self._check(index)
        if self._read is None or index != self._next:
            steps = range(index, self.num_batches or 0)
            rows = [self._rows_of(step)[0] for step in steps]
            seeds = (self._seed, self._part.epoch)
            self._read, self._next = self._reader.batches(rows, seeds), index
        batch = next(self._read)
        self._next += 1
        return (
            weighted(batch, self._rows_of(index)[1]) if self._fills else batch
        )

    def _take(self, part: Pass) -> None:
        super()._take(part)
        self._read = None
