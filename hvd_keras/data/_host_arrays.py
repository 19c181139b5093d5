"""Cuts arrays into the batches of a rank, without TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hvd_keras.data import _structures
from hvd_keras.data._deal import Deal
from hvd_keras.data._py_dataset import weighted
from hvd_keras.data._py_share import RowShare
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


class ShardedArrays(RowShare):
    """This rank's batches of arrays; each epoch may have another order.

    Args:
        arrays: As from `to_arrays`, equal on all ranks.
        handle: Says where an iteration begins, and for which ranks.
        deal: Decides about the form of the batches.
        order: `shuffle` and `seed`, see `PyShare`.
    """

    has_fixed_rows = True
    gives_inputs_alone = False  # of batches (inputs, targets)

    def __init__(
        self, arrays: Any, handle: Handle, deal: Deal, **order: Any
    ) -> None:
        self._arrays = arrays
        super().__init__(handle, deal, num_rows_of(arrays), **order)

    def __getitem__(self, index: int) -> Any:
        self._check(index)
        rows, weights = self._rows_of(index)
        batch = keras.tree.map_structure(lambda a: a[rows], self._arrays)
        if self.gives_inputs_alone:
            return batch[:1]
        return weighted(batch, weights) if self._fills else batch


def _to_array(data: Any) -> Any:
    is_tensor = keras.ops.is_tensor(data)
    return keras.ops.convert_to_numpy(data) if is_tensor else np.asarray(data)
