"""The arrays that datasets, PyDatasets and DataLoaders draw all rows of."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from hvd_keras._common.dataset_kinds import kind_of

# Stages of tf.data that keep one row one row, and drop none.
_KEEPS_ROWS = (
    *("AssertCardinality", "Batch", "Cache", "Map", "Options", "ParallelBatch"),
    *("ParallelMap", "Prefetch", "Shuffle", "Zip"),
)


def arrays_behind(data: Any) -> list[Any]:
    """Returns the arrays whose rows, all of them, an epoch of `data` has.

    Nothing is read for it. The list is empty if nobody knows them, and for what
    `shard` returns.
    """
    if is_ours(data):
        return []
    tf, torch = sys.modules.get("tensorflow"), sys.modules.get("torch")
    if tf is not None and isinstance(data, tf.data.Dataset):
        return _behind_dataset(data) or []
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(data, keras.utils.PyDataset):
        return _held_by(data)
    loaders = torch and torch.utils.data
    if loaders and isinstance(data, loaders.DataLoader):
        samplers = loaders.RandomSampler, loaders.SequentialSampler
        batched = type(data.batch_sampler) is loaders.BatchSampler
        if batched and type(data.sampler) in samplers:
            if type(data.dataset) is loaders.TensorDataset:
                return list(data.dataset.tensors)
            return _held_by(data.dataset, len(data.sampler))
    return []


def rows_held(data: Any) -> dict[str, Any]:
    """Returns the arrays in attributes of a PyDataset that may be its rows."""
    try:
        return {
            name: array
            for name, value in vars(data).items()
            for array in _arrays_in([value])
            if len(array) >= len(data)
        }
    except Exception:  # of the user's `__len__`
        return {}


def _behind_dataset(dataset: Any) -> list[Any] | None:
    kind = kind_of(dataset)
    if kind == "TensorSlice":
        return list(dataset._tensors)
    if kind not in _KEEPS_ROWS or _is_share(dataset):
        return None
    parts = [_behind_dataset(each) for each in dataset._inputs()]
    if None in parts:
        return None
    return [array for part in parts for array in part or ()]


def _held_by(owner: Any, num_rows: int | None = None) -> list[Any]:
    """Returns the arrays that an object of the user's reads rows of.

    With them goes what its methods may pick rows by. If that depends on the
    rank, so does what is returned.

    Args:
        owner: It has `__getitem__`.
        num_rows: Of an epoch; None: `owner` has batches.
    """
    if is_ours(owner):
        return []
    methods = _methods_of(type(owner))
    codes = [method.__code__ for method in methods]
    names = {name for code in codes for name in code.co_names}
    if "rank" in names:
        return []
    shared = methods[0].__globals__ if methods else {}
    # Sorted, for the order of a set is each process's own.
    used = {name: shared[name] for name in sorted(names) if name in shared}
    used.update(vars(owner))
    arrays = [*_arrays_in(used.values())]
    count = max(map(len, arrays), default=0)
    if not count:
        return []
    if num_rows is None:
        sizes = [*used.values(), *(each for c in codes for each in c.co_consts)]
        batches = {
            number
            for size in sizes
            if type(size) is int and size > 0
            for number in (count // size, -(-count // size))
        }
        if len(owner) not in batches:
            return []
    elif num_rows < count:
        return []
    plain = [
        f"{name} {value!r}"
        for name, value in used.items()
        if isinstance(value, int | float | str | slice | tuple)
    ]
    return [*arrays, np.array([*plain, ""])]


def _methods_of(kind: type) -> list[Any]:
    """Returns the methods that the user has written."""
    return [
        method
        for each in kind.__mro__
        if not each.__module__.startswith(("builtins", "keras.", "torch."))
        for method in vars(each).values()
        if inspect.isfunction(method)
    ]


def _arrays_in(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, list) and len(value) > 1:
            if all(isinstance(each, str) for each in value):  # of files
                yield np.array(value)
        elif hasattr(value, "__len__") and len(getattr(value, "shape", ())):
            yield from () if _is_order(value) else (value,)


def _is_order(array: Any) -> bool:
    """Whether an array only says in which order rows come."""
    if len(array.shape) > 1 or getattr(array.dtype, "kind", "") != "i":
        return False
    return bool((np.sort(array) == np.arange(len(array))).all())


def is_ours(value: Any) -> bool:
    """Whether it is of a class of ours, or `shard` has returned it."""
    return type(value).__module__.startswith("hvd_keras.") or _is_share(value)


def _is_share(data: Any) -> bool:
    """Whether `shard` has returned it."""
    return hasattr(data, "_hvd_counts")
