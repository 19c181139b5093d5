"""Cuts arrays into the batches of a rank, without TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hvd_keras._keras import fit as keras_fit
from hvd_keras.data import _structures
from hvd_keras.data._deal import Deal
from hvd_keras.data._py_dataset import weighted


def to_arrays(data: Any) -> Any:
    """Returns the same structure with NumPy arrays; lists become tuples.

    Raises:
        ValueError: There is no array, or the arrays differ in number of rows.
    """
    arrays = _structures.converted(data, _to_array)
    _structures.check_rows(keras.tree.flatten(arrays))
    return arrays


def num_rows_of(arrays: Any) -> int:
    """Returns the length of the first dimension of all the arrays."""
    return len(keras.tree.flatten(arrays)[0])


def describe(arrays: Any) -> list[Any]:
    """Returns what must be equal on all ranks."""
    return _structures.describe(
        keras.tree.flatten(arrays), lambda array, rows: array[rows]
    )


class ShardedArrays(keras.utils.PyDataset):
    """This rank's batches of arrays; each epoch may have another order.

    Args:
        arrays: As from `to_arrays`, equal on all ranks.
        deal: Assigns the rows to the ranks.
        shuffle: Whether rows come in another order in each epoch.
        seed: Decides on the order, together with the number of the epoch.
    """

    def __init__(
        self, arrays: Any, deal: Deal, *, shuffle: bool, seed: int
    ) -> None:
        super().__init__()
        self._arrays = arrays
        self._deal = deal
        self._shuffle = shuffle
        self._seed = seed
        self._num_rows = num_rows_of(arrays)
        self._epoch = 0
        self._order = self._new_order()

    @property
    def num_batches(self) -> int:
        """Steps of this rank in an epoch."""
        return self._deal.num_steps(self._num_rows)

    def __getitem__(self, index: int) -> Any:
        if index >= self.num_batches:
            raise IndexError(index)  # ends a loop
        deal = self._deal
        full = deal.global_size
        end = (index + 1) * full
        if index == deal.num_global_steps(self._num_rows) - 1:
            end = end if deal.policy == "drop" else self._num_rows
        rows = self._order[index * full : end]
        places, weights = deal.own_rows(len(rows))
        own = rows[places]
        batch = keras.tree.map_structure(lambda a: a[own], self._arrays)
        if deal.may_fill(self._num_rows):
            return weighted(batch, weights)
        return batch

    def on_epoch_begin(self) -> None:
        keras_fit.keep_order(self)

    def on_epoch_end(self) -> None:
        self._epoch += 1
        self._order = self._new_order()

    def _new_order(self) -> Any:
        if not self._shuffle:
            return np.arange(self._num_rows)
        generator = np.random.default_rng([self._seed, self._epoch])
        return generator.permutation(self._num_rows)


def _to_array(data: Any) -> Any:
    is_tensor = keras.ops.is_tensor(data)
    return keras.ops.convert_to_numpy(data) if is_tensor else np.asarray(data)
