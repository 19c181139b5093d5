"""Shares of data sets that are read by the numbers of their rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from hvd_keras.data import _structures
from hvd_keras.data._deal import Deal
from hvd_keras.data._pass import Pass
from hvd_keras.data._py_dataset import weighted
from hvd_keras.data._py_share import PyShare
from hvd_keras.data._readers import Array, Reader
from hvd_keras.data.position import Handle


def describe(reader: Reader) -> list[Any]:
    """Returns what must be equal on all ranks: types, shapes, first rows."""
    batch = next(reader.batches([np.arange(min(2, reader.num_rows))], (0, 0)))
    return [
        [part.dtype.name, list(part.shape[1:]), _structures.checksum_of(part)]
        for part in keras.tree.flatten(batch)
    ]


class LoadedRows(PyShare):
    """This rank's batches of rows that a reader reads ahead.

    Args:
        reader: Reads rows by their numbers.
        handle: Says where an iteration begins, and for which ranks.
        deal: Decides about the form of the batches.
        shuffle: Whether rows come in another order in each epoch.
        seed: Decides on the order, together with the number of the epoch.
    """

    def __init__(
        self,
        reader: Reader,
        handle: Handle,
        deal: Deal,
        *,
        shuffle: bool,
        seed: int,
    ) -> None:
        self._reader = reader
        self._fills = deal.may_fill(reader.num_rows)
        self._read: Iterator[Any] | None = None
        self._next = 0  # the step that is read next
        super().__init__(handle, reader.num_rows, shuffle=shuffle, seed=seed)

    def __getitem__(self, index: int) -> Any:
        if index >= (self.num_batches or 0):
            raise IndexError(index)  # ends a loop
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

    def _rows_of(self, step: int) -> tuple[Array, Array]:
        begin, end = self._part.bounds(step)
        places, weights = self._part.deal.own_rows(end - begin)
        places = places + begin
        return places if self._order is None else self._order[places], weights

    def _take(self, part: Pass) -> None:
        super()._take(part)
        self._read = None
