"""A `PyDataset` of one rank's batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from hvd_keras._common import log
from hvd_keras._keras import epochs, random_streams
from hvd_keras.data._deal import FILLING, Deal
from hvd_keras.data._orders import (
    Order,
    changed,
    checksum_of_targets,
    orders_of,
    permuted,
    words_of_targets,
)
from hvd_keras.data._py_share import PyShare, is_read_here
from hvd_keras.data._structures import has_targets
from hvd_keras.data.position import Handle

# Whether Keras fetches batches before steps ask for them.
_FETCHES_AHEAD = keras.backend.backend() == "tensorflow"


class ShardedPyDataset(PyShare):
    """Every `size`-th batch of a `PyDataset`; step i takes the i-th group.

    If the deal keeps batches: this rank's rows of each.

    Args:
        data: The batches of all ranks.
        handle: Says where an iteration begins, and for which ranks.
        deal: Decides about the form of the batches; its batch size is 1, a
            batch.
        order: `shuffle` and `seed`, see `PyShare`.
    """

    def __init__(
        self,
        data: keras.utils.PyDataset,
        handle: Handle,
        deal: Deal,
        **order: Any,
    ) -> None:
        self._data = data
        self._orders = orders_of(data)
        self._has_told = False  # how the last batches are cut
        self._has_read = False
        # Contexts in which `data` may draw numbers for all ranks, and in which
        # it may draw others. Nobody enters both at once.
        self.drawing_alike = self.reading = contextlib.nullcontext
        super().__init__(
            handle,
            deal,
            data.num_batches,
            **order,
            workers=data.workers,
            use_multiprocessing=data.use_multiprocessing,
            max_queue_size=data.max_queue_size,
        )
        handle.taken.num_batches = data.num_batches
        handle.taken.has_targets = True

    def __getitem__(self, index: int) -> Any:
        self._check(index)
        deal, count = self._part.deal, self._part.num_rows
        if deal.keeps_batches:
            return self._own_rows_of(self._part.first + index)
        if deal.num_merged > 1:
            return self._merged(index)
        place = index * deal.size
        num = deal.size if count is None else min(deal.size, count - place)
        first = self._part.first + place
        if deal.policy == "split" and num < deal.size:
            return self._split(first, num)
        if deal.policy != "pad":
            batch = self._batch(first + num * deal.rank // deal.size)
        else:
            batch = self._batch(first + deal.rank % num)
        if self._handle is not None:  # not in a worker process
            self._handle.own_loop.note_batch(batch)
            self._handle.own_loop.note_copies(num, deal.size)
        if deal.policy != "pad":
            return batch
        if not self._fills:
            return batch
        return weighted(batch, 1.0 if deal.rank < num else FILLING)

    def on_epoch_begin(self) -> None:
        super().on_epoch_begin()
        others = self._shuffle_by(self._data.on_epoch_begin)
        if self._handle.taken.note_orders({**others, **self._orders}):
            self._orders = {}

    def on_epoch_end(self) -> None:
        is_ahead = _FETCHES_AHEAD and is_read_here(self)
        if is_ahead and epochs.is_within_pass(self):
            # How much is fetched by now is another thing on each rank. So this
            # pass keeps its order.
            self._num_late_ends += 1
        else:
            others = self._shuffle_by(self._data.on_epoch_end)
            self._handle.taken.note_orders_at_end(others)
        super().on_epoch_end()

    @property
    def _num_late_ends(self) -> int:
        """How often the data have yet to hear that an epoch has ended."""
        return getattr(self._data, "_hvd_num_late_ends", 0)

    @_num_late_ends.setter
    def _num_late_ends(self, count: int) -> None:
        self._data._hvd_num_late_ends = count

    def _check(self, index: int) -> None:
        if index == 0 and self._handle is not None:
            for _ in range(self._num_late_ends):
                self._num_late_ends -= 1
                self._shuffle_by(self._data.on_epoch_end)
        super()._check(index)

    def _shuffle_by(self, method: Callable[[], None]) -> dict[str, Order]:
        """Calls a method of the data, and notes what it puts in an order.

        Returns:
            What else may be an order, as it was before. Batches, and callbacks
            between epochs, may have changed it.
        """
        if self._part.deal.size == 1:
            method()
            return {}
        before = orders_of(self._data)
        with random_streams.common(), self.drawing_alike():
            method()
        self._orders.update(changed(before, orders_of(self._data)))
        return permuted(before, self._data.num_batches)

    def _batch(self, place: int, *, is_shared: bool = False) -> Any:
        place = int(self._items(np.asarray(place)))
        # The first one may draw an order, too.
        is_first = not self._has_read and is_read_here(self)
        with self.drawing_alike() if is_first else self.reading():
            batch = self._data[place]
        self._has_read = True
        if self._handle is not None and self._handle.taken.is_watched:
            self._handle.taken.note_targets(
                place,
                checksum_of_targets(batch),
                words_of_targets(batch) if is_shared else None,
            )
        return batch

    def _merged(self, index: int) -> Any:
        """Returns the batches of all the ranks that this one stands for."""
        count, num = self._part.num_rows, self._part.deal.batch_size
        place = index * num
        num = num if count is None else min(num, count - place)
        whole = self._joined(self._part.first + place, num)
        return weighted(whole, 1.0) if self._fills else whole

    def _own_rows_of(self, place: int) -> Any:
        """Returns this rank's rows of a batch that all ranks share."""
        whole, deal = self._batch(place, is_shared=True), self._part.deal
        num_rows = len(keras.tree.flatten(whole)[0])
        fills = self._fills and has_targets(whole)
        if num_rows < deal.size and not fills:
            raise ValueError(
                f"A batch must have a row for each of the {deal.size} ranks, "
                f"if it has no targets. Received: {num_rows} rows."
            )
        if self._handle is not None:
            self._handle.own_loop.note_global(num_rows, deal)
            self._tell_of_cut(whole, num_rows, "a batch")
        rows, weights = deal.own_rows(num_rows)
        own = keras.tree.map_structure(lambda each: each[rows], whole)
        return weighted(own, weights) if fills else own

    def _joined(self, first: int, count: int) -> Any:
        batches = [
            self._batch(first + number, is_shared=True)
            for number in range(count)
        ]
        _check_can_be_cut(batches)
        return keras.tree.map_structure(
            lambda *parts: np.concatenate([np.asarray(p) for p in parts]),
            *batches,
        )

    def _split(self, first: int, count: int) -> Any:
        """Returns this rank's rows of the last batches."""
        whole = self._joined(first, count)
        num_rows = len(keras.tree.flatten(whole)[0])
        if num_rows < self._part.deal.size:
            raise ValueError(
                "The last batches of `data` must have a row for each of the "
                f"{self._part.deal.size} ranks. Received: {num_rows} rows in "
                f"{count} batches; pass policy='pad' or policy='drop'."
            )
        if self._handle is not None:
            self._handle.own_loop.note_global(num_rows, self._part.deal)
            self._tell_of_cut(whole, num_rows, "the last batches")
        begin, end = self._part.deal.bounds(num_rows)
        return keras.tree.map_structure(lambda rows: rows[begin:end], whole)

    def _tell_of_cut(self, whole: Any, num_rows: int, what: str) -> None:
        """Tells, once, along which axis a batch is cut that has no targets.

        Inputs and targets of one length have their rows on axis 0.
        """
        if self._has_told or has_targets(whole) or self._part.deal.rank:
            return
        self._has_told = True
        shapes = [np.shape(part) for part in keras.tree.flatten(whole)]
        log.info(
            f"The ranks share the {num_rows} rows of {what} of "
            f"`data`, arrays of shapes {shapes} together, along axis 0. If "
            f"the rows are not there: {_CUT_CURE}"
        )


def _check_can_be_cut(batches: list[Any]) -> None:
    """Raises ValueError unless rows of batches can be joined and cut."""
    for number, parts in enumerate(
        zip(*map(keras.tree.flatten, batches), strict=True)
    ):
        shapes = [tuple(np.shape(part)) for part in parts]
        if not all(shapes) or len({shape[1:] for shape in shapes}) > 1:
            raise ValueError(
                f"{_CUT_RULE}Received: shapes {shapes} of array {number} in "
                f"the last batches. {_CUT_CURE}"
            )
    for batch in batches:
        shapes = [tuple(np.shape(part)) for part in keras.tree.flatten(batch)]
        if len({shape[0] for shape in shapes}) > 1:
            raise ValueError(
                f"{_CUT_RULE}Received: arrays of shapes {shapes} in one of "
                f"them. {_CUT_CURE}"
            )


_CUT_RULE = (
    "The ranks share the rows of the last batches of `data`, so these must "
    "have their rows on axis 0, and equal shapes otherwise. "
)
_CUT_CURE = (
    "Pass policy='drop' to `hvd.shard`, which leaves these batches out, or "
    "let `data` make a number of batches that the ranks can share."
)


def weighted(batch: Any, weights: Any) -> Any:
    """Does what `_arrays.weighted` does; works in a worker, without TensorFlow.

    Args:
        batch: A batch; a tuple or list is (x, y) or (x, y, sample_weight).
        weights: A number for all rows, or a vector with an entry for each row.
    """
    if not has_targets(batch):
        return batch
    num_rows = len(keras.tree.flatten(batch[1])[0])
    weights = np.broadcast_to(np.asarray(weights, np.float32), [num_rows])
    if len(batch) == 2:
        return (*batch, weights)

    def marked(own: Any) -> Any:
        own = np.asarray(own)
        if not np.issubdtype(own.dtype, np.floating):
            own = own.astype(np.float32)
        shape = [-1] + [1] * (own.ndim - 1)
        return np.where(
            np.reshape(weights > 0, shape), own, own.dtype.type(FILLING)
        )

    return (*batch[:2], keras.tree.map_structure(marked, batch[2]))
