"""From columns of Arrow tables to the arrays that Keras takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def to_arrays(table: Any, names: Sequence[str]) -> Arrays:
    """Returns columns as arrays: (rows,) of numbers, (rows, n) of lists."""
    return {name: _to_array(table.column(name)) for name in names}


def _to_array(column: Any) -> np.ndarray:
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values = column.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(len(column), -1)
    return np.asarray(column.to_numpy(zero_copy_only=False))


def features(arrays: Arrays, names: Sequence[str], model: Any) -> Any:
    """Returns what a model takes: an array for each of its inputs.

    A model with one input gets the columns side by side, in its shape.
    """
    columns = [arrays[name].astype("float32") for name in names]
    shapes = [tuple(one.shape[1:]) for one in model.inputs]
    if len(shapes) == 1 and len(columns) > 1:
        wide = [c[:, None] if c.ndim == 1 else c for c in columns]
        columns = [np.concatenate(wide, axis=1)]
    if len(columns) != len(shapes):
        raise ValueError(
            f"`feature_cols` must be one for each of the {len(shapes)} inputs "
            f"of the model. Received: {list(names)}."
        )
    shaped = [
        c.reshape(len(c), *shape)
        for c, shape in zip(columns, shapes, strict=True)
    ]
    return shaped[0] if len(shaped) == 1 else tuple(shaped)


def labels(arrays: Arrays, names: Sequence[str]) -> Any:
    """Returns an array for each label."""
    found = tuple(arrays[name] for name in names)
    return found[0] if len(found) == 1 else found
