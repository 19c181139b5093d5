"""What all shares have in common that are a `PyDataset`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import keras

from hvd_keras.data._deal import Deal
from hvd_keras.data._pass import Array, OfEpoch, Pass, Shuffle, order_of
from hvd_keras.data.position import Handle


def is_read_here(data: keras.utils.PyDataset) -> bool:
    """Whether a single thread of this process reads a `PyDataset`."""
    return data.workers <= 1 and not data.use_multiprocessing


class PyShare(keras.utils.PyDataset):
    """A rank's batches of one iteration, and then of the next.

    A copy in a worker process knows its iteration, but no handle.

    Args:
        handle: Says where an iteration begins, and for which ranks.
        deal: Decides about the form of the batches.
        num_items: What is shuffled, rows or batches; None: without end.
        shuffle: Whether they come in another order in each epoch, or what
            draws it.
        seed: Decides on the order, together with the number of the epoch.
        options: Those of `PyDataset`.
    """

    def __init__(
        self,
        handle: Handle,
        deal: Deal,
        num_items: int | None,
        *,
        shuffle: Shuffle,
        seed: int,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._handle = handle
        self._num_items = num_items
        self._shuffle = shuffle if num_items is not None else False
        # An order is drawn with the first batch: Keras goes on with that of an
        # epoch of few steps. Workers have theirs before.
        self._draws = callable(self._shuffle) or is_read_here(self)
        self._must_draw, self._num_before = False, 0
        # That of a `fit` that gives it is its first one: as in Keras, orders
        # that are drawn, or depend on the number alone, begin there.
        self._initial_epoch = 0
        # Keras builds a model by a batch, and counts that as an epoch.
        self._num_for_builds = 0
        self._seed = seed
        # Whether batches tell which rows only fill them.
        self._fills = num_items is not None and deal.may_fill(num_items)
        self._order: Array | None = None
        handle.call_at_seek(self._seek)
        self._prepare()

    @property
    def num_batches(self) -> int | None:
        """Steps of this rank in this iteration; None: without end."""
        return self._part.num_steps

    def __len__(self) -> int:
        if self.num_batches is None:
            raise TypeError("The data are without end, so they have no len().")
        return self.num_batches

    def __iter__(self) -> Iterator[Any]:
        self._begin()
        # Keras's own class has no such method before 3.12.
        count = self.num_batches
        indices = itertools.count() if count is None else range(count)
        return self._batches(indices)

    def _batches(self, indices: Iterable[int]) -> Iterator[Any]:
        try:
            for index in indices:
                yield self[index]
        finally:
            if self._handle is not None:
                self._handle.own_loop.end()

    def on_epoch_begin(self) -> None:
        self._begin()

    def on_epoch_end(self) -> None:
        self._num_for_builds += not self._handle.has_trained
        self._handle.end()
        self._prepare()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_handle": None, "_hvd_handle": None}

    def _check(self, index: int) -> None:
        count = self.num_batches
        if count is not None and index >= count:
            raise IndexError(index)  # ends a loop
        if index or not self._must_draw:
            return
        self._must_draw = False
        if callable(self._shuffle):
            self._order = self._shuffle(self._num_items or 0, self._num_before)
            self._num_before = 0
        else:
            self._order = self._order_of_pass()

    def _items(self, places: Array) -> Array:
        """Returns the numbers of the items at some places of the epoch."""
        return places if self._order is None else self._order[places]

    def _begin(self) -> None:
        begun = self._handle.begin()
        if begun != self._part:
            self._take(begun)
        self._must_draw = self._draws

    def _prepare(self) -> None:
        # Workers may ask for batches before `on_epoch_begin`.
        self._take(self._handle.upcoming())
        # Whoever reads the first batch without it gets the right order, too.
        self._must_draw |= self._draws and not callable(self._shuffle)

    def _seek(self) -> None:
        epoch = self._handle.upcoming().epoch
        self._initial_epoch = min(self._handle.initial_epoch, epoch)
        self._prepare()
        self._num_before = epoch - self._initial_epoch

    def _take(self, part: Pass) -> None:
        self._part = part
        if not self._draws:
            self._order = self._order_of_pass()

    def _order_of_pass(self) -> Array | None:
        assert not callable(self._shuffle)
        epoch = self._part.epoch
        if isinstance(self._shuffle, OfEpoch):
            epoch += self._num_for_builds - self._initial_epoch
        return order_of(
            self._num_items or 0,
            epoch,
            shuffle=self._shuffle,
            seed=self._seed,
        )


class RowShare(PyShare):
    """A rank's batches of rows that have numbers."""

    def _rows_of(self, step: int) -> tuple[Array, Array]:
        """Returns the numbers of this rank's rows in a step, and weights."""
        begin, end = self._part.bounds(step)
        places, weights = self._part.deal.own_rows(end - begin)
        return self._items(begin + places), weights
