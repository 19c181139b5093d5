"""What `shard` does otherwise in a comparison of `hvdrun --verify`."""

from __future__ import annotations

import sys
from typing import Any

import keras

from hvd_keras._common import verification
from hvd_keras.data import _comparison
from hvd_keras.exceptions import InvalidArgumentError
from hvd_keras.process_set import ProcessSet, global_process_set


def prepared(
    data: Any,
    batch_size: int | None,
    global_batch_size: int | None,
    batched: bool,
    process_set: ProcessSet,
) -> Any:
    """Returns the data to shard; elsewhere all of it.

    A comparison takes few steps. Long data are cut, so that these steps make
    two epochs: each has full steps, and the rest at its end. What is predicted
    is not cut, as the script needs its rows.

    Raises:
        InvalidArgumentError: In a comparison: only some of the ranks share the
            data. One process cannot stand for them.
    """
    num_steps = verification.num_steps()
    if not num_steps:
        return data
    if process_set != global_process_set:
        raise InvalidArgumentError(
            "`hvdrun --verify` needs data that all ranks share: one process "
            "stands for all of them. Received: `hvd.shard(..., "
            f"process_set={process_set})`."
        )
    ranks = verification.num_merged() * (process_set.size() or 1)
    full = global_batch_size or ranks * (batch_size or 0)
    if not full or batched or _comparison.caller() == "predict":
        return data
    tf = sys.modules.get("tensorflow")
    if tf is not None and isinstance(data, tf.data.Dataset):
        num_rows = int(data.cardinality())
        length = _length(num_rows, full, num_steps)
        return data if length is None else data.take(length)
    if isinstance(data, keras.utils.PyDataset) or callable(data):
        return data
    arrays = keras.tree.flatten(data)
    if not all(len(getattr(a, "shape", ())) for a in arrays):
        return data
    length = _length(int(arrays[0].shape[0]), full, num_steps)
    if length is None:
        return data
    return keras.tree.map_structure(lambda array: array[:length], data)


def _length(num_rows: int, full: int, num_steps: int) -> int | None:
    """Returns how many rows make half of the steps, with the same rest."""
    rest = num_rows % full or full
    length = max(num_steps // 2 - 1, 1) * full + rest
    return length if length < num_rows else None
