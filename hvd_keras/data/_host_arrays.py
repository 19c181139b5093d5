"""Cuts arrays into the batches of a rank, without TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hvd_keras.data import _structures
from hvd_keras.data._deal import Deal
from hvd_keras.data._py_dataset import weighted
from hvd_keras.data._py_share import PyShare
from hvd_keras.data.position import Handle


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


class ShardedArrays(PyShare):
    """This rank's batches of arrays; each epoch may have another order.

    Args:
        arrays: As from `to_arrays`, equal on all ranks.
        handle: Says where an iteration begins, and for which ranks.
        deal: Decides about the form of the batches.
        shuffle: Whether rows come in another order in each epoch.
        seed: Decides on the order, together with the number of the epoch.
    """

    def __init__(
        self,
        arrays: Any,
        handle: Handle,
        deal: Deal,
        *,
        shuffle: bool,
        seed: int,
    ) -> None:
        self._arrays = arrays
        self._num_rows = num_rows_of(arrays)
        self._fills = deal.may_fill(self._num_rows)
        super().__init__(handle, self._num_rows, shuffle=shuffle, seed=seed)

    def __getitem__(self, index: int) -> Any:
        if index >= (self.num_batches or 0):
            raise IndexError(index)  # ends a loop
        begin, end = self._part.bounds(index)
        places, weights = self._part.deal.own_rows(end - begin)
        own = (
            places + begin
            if self._order is None
            else self._order[begin + places]
        )
        batch = keras.tree.map_structure(lambda a: a[own], self._arrays)
        return weighted(batch, weights) if self._fills else batch


def _to_array(data: Any) -> Any:
    is_tensor = keras.ops.is_tensor(data)
    return keras.ops.convert_to_numpy(data) if is_tensor else np.asarray(data)
