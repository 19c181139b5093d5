"""What may decide on the order of a `PyDataset`: arrays and lists in it.

A `PyDataset` that shuffles itself keeps numbers, names or rows in an order.
Ranks that have the same entries in another order have shuffled unequally. They
may be outside of the object: in its class, or in what its methods look at.
"""

from __future__ import annotations

import contextlib
import inspect
import types
import zlib
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from hvd_keras.data._structures import has_targets

_DEPTH = 3  # of objects within objects
_MOST_ENTRIES = 1 << 21
_NUM_VALUES = 4  # of an entry that is an array
_MOST_BYTES = 1 << 8  # of an entry in a list
_MOST_OF_TARGETS = 1 << 12  # bytes, of each end
_FOREIGN = (
    *("keras", "tensorflow", "torch", "jax", "hvd_keras", "threading"),
    *("builtins", "numpy"),
)

# Length, whether all are integers, a checksum of the entries in their order,
# and one that does not depend on the order.
Order = list[Any]


def orders_of(data: Any) -> dict[str, Order]:
    """Returns what tells the orders of arrays and lists in an object, by name.

    It looks at memory alone: what is on disk is not read.
    """
    orders = {}
    for name, entries in _found("", data, _DEPTH, set()):
        order = _order_of(entries)
        if order is not None:
            orders[name] = order
    return orders


def changed(
    before: dict[str, Order], after: dict[str, Order]
) -> dict[str, Order]:
    """Returns those of `after` that are not as before."""
    return {
        name: order
        for name, order in after.items()
        if before.get(name) != order
    }


def permuted(
    orders: dict[str, Order], num_batches: int | None
) -> dict[str, Order]:
    """Returns those of orders that may be one, and prove it by entries alone.

    Args:
        orders: What anything may have changed, such as a batch its cache.
        num_batches: The batches of an epoch; None if there is no end.
    """
    return {
        name: [order[0], False, *order[2:]]
        for name, order in orders.items()
        if order[0] >= (num_batches or 2)
    }


def checksum_of_targets(batch: Any) -> int:
    """Returns a checksum of a batch's targets.

    Targets of images that are changed at random stay as they are, so they tell
    which rows `__getitem__` has taken. Without any, it is that of the shapes.
    """
    has_some, checksum = has_targets(batch), 0
    for array in _arrays_in(batch[1] if has_some else batch):
        form = f"{array.dtype.str}{array.shape}"
        checksum = zlib.crc32(form.encode(), checksum)
        if not has_some or array.dtype.hasobject:
            continue
        if array.nbytes <= 2 * _MOST_OF_TARGETS:
            checksum = zlib.crc32(array.tobytes(), checksum)
            continue
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        for part in (data[:_MOST_OF_TARGETS], data[-_MOST_OF_TARGETS:]):
            checksum = zlib.crc32(part.tobytes(), checksum)
    return checksum


def words_of_targets(batch: Any) -> str:
    """Returns the first targets of a batch in words; else the shapes."""
    arrays = _arrays_in(batch[1] if has_targets(batch) else batch)
    if not has_targets(batch):
        return ", ".join(str(array.shape) for array in arrays)
    first = [array.reshape(-1)[:4].tolist() for array in arrays[:2]]
    return "; ".join(", ".join(map(_shown, values)) for values in first)


def _arrays_in(structure: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(structure, np.ndarray):
        return [structure]
    return [np.asarray(part) for part in keras.tree.flatten(structure)]


def unequal(
    orders: list[dict[str, Order]], num_batches: int | None
) -> tuple[str, list[str]] | None:
    """Returns what ranks have in another order, and each one's first entries.

    It is None if nothing proves that: a rank may have what it alone needs.
    Integers of equal number count as numbers of rows if there is at least one
    for each batch, though some are missing on a rank.

    Args:
        orders: Those of each rank.
        num_batches: The batches of an epoch; None if there is no end.
    """
    for name in orders[0]:
        each = [one.get(name) for one in orders]
        known = [one for one in each if one is not None]
        if len(known) < len(each) or len({one[0] for one in known}) > 1:
            continue
        if len({one[2] for one in known}) == 1:
            continue
        has_same = len({one[3] for one in known}) == 1
        are_numbers = all(one[1] for one in known) and known[0][0] >= (
            num_batches or 2
        )
        if has_same or are_numbers:
            return name, [one[4] for one in known]
    return None


def unequal_targets(targets: list[dict[int, Any]]) -> int | None:
    """Returns the first batch whose targets differ by rank; None: none.

    Only batches count that all ranks have read so far.
    """
    for place in sorted(set.intersection(*map(set, targets))):
        if len({one[place][0] for one in targets}) > 1:
            return place
    return None


def _found(
    name: str, value: Any, depth: int, seen: set[int]
) -> Iterator[tuple[str, Any]]:
    """Yields arrays and lists of a value that is not yet seen, with names."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, np.memmap):
        return
    if isinstance(value, np.ndarray):
        if value.ndim and len(value) > 1:
            yield name, value
        return
    if isinstance(value, list | tuple):
        if len(value) > 1:
            yield name, value
        is_short = len(value) <= 8  # such as (x, y)
        parts: dict[Any, Any] = dict(enumerate(value)) if is_short else {}
    elif isinstance(value, dict):
        parts = value if len(value) <= 64 else {}
    elif callable(getattr(value, "to_numpy", None)):  # of pandas
        index = getattr(value, "index", None)
        if index is not None and not callable(index):
            yield f"{name}.index", np.asarray(index)
        columns = getattr(value, "columns", None)
        parts = {} if columns is None else {c: value[c] for c in columns}
        if columns is None:
            yield name, value.to_numpy()
    elif isinstance(value, types.FunctionType):
        parts = {} if _is_foreign(value) else _seen_by(value)
    elif isinstance(value, type) or _is_foreign(type(value)):
        return
    else:
        parts = {**_of_class(type(value)), **getattr(value, "__dict__", {})}
    if depth:
        for key, part in parts.items():
            inner = f"{name}.{key}" if name else str(key)
            yield from _found(inner, part, depth - 1, seen)


def _is_foreign(value: Any) -> bool:
    return (value.__module__ or "").split(".")[0] in _FOREIGN


def _of_class(kind: type) -> dict[str, Any]:
    """Returns what the classes of a user hold, or their methods look at."""
    parts: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        for name, value in vars(each).items() if not _is_foreign(each) else ():
            value = getattr(value, "fget", None) or value
            function = inspect.unwrap(getattr(value, "__func__", value))
            if isinstance(function, types.FunctionType):
                parts.update(_seen_by(function))
            elif not name.startswith("__"):
                parts[name] = value
    return parts


def _seen_by(function: types.FunctionType) -> dict[str, Any]:
    """Returns variables outside of a function that it looks at."""
    parts = {}
    for name in _names_in(function.__code__):
        if name in function.__globals__:
            parts[name] = function.__globals__[name]
    cells = zip(
        function.__code__.co_freevars, function.__closure__ or (), strict=True
    )
    for name, cell in cells:
        with contextlib.suppress(ValueError):  # it is empty
            parts[name] = cell.cell_contents
    return parts


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _names_in(each)


def _order_of(entries: Any) -> Order | None:
    """Returns what tells the order of entries; None if they are too many."""
    if len(entries) > _MOST_ENTRIES:
        return None
    if isinstance(entries, np.ndarray) and entries.dtype != object:
        numbers = _numbers_of_array(entries)
        are_numbers = entries.ndim == 1 and entries.dtype.kind in "iu"
    else:
        numbers = np.array([_number_of(entry) for entry in entries], np.uint64)
        are_numbers = all(isinstance(entry, int) for entry in entries)
    return [
        len(numbers),
        are_numbers,
        zlib.crc32(numbers.tobytes()),
        int(mixed(numbers).sum(dtype=np.uint64)),
        ", ".join(_shown(entry) for entry in entries[:4]),
    ]


def _numbers_of_array(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns a number for each row, by some of its values."""
    rows = array.reshape(len(array), -1)
    rows = rows[:, :: 1 + rows.shape[1] // _NUM_VALUES]
    numbers = np.zeros(len(rows), np.uint64)
    for column in rows.T:
        width = column.dtype.itemsize
        if width in (1, 2, 4, 8) and column.dtype.kind not in "SU":
            values = np.ascontiguousarray(column).view(f"u{width}")
            values = values.astype(np.uint64)
        else:
            values = np.array(
                [zlib.crc32(value.tobytes()) for value in column], np.uint64
            )
        numbers = mixed(numbers) + values
    return numbers


def mixed(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns numbers whose sum tells which they are (splitmix64)."""
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(
        0xBF58476D1CE4E5B9
    )
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(
        0x94D049BB133111EB
    )
    return numbers ^ (numbers >> np.uint64(31))


def _number_of(entry: Any) -> int:
    """Returns a number that tells an entry of a list."""
    if isinstance(entry, list | tuple):
        number = len(entry)
        for part in entry[:_NUM_VALUES]:
            number = zlib.crc32(str(_number_of(part)).encode(), number)
        return number
    if isinstance(entry, np.ndarray):
        if isinstance(entry, np.memmap):
            return 0
        flat = entry.reshape(-1)
        return zlib.crc32(flat[: _MOST_BYTES // 8].tobytes())
    if isinstance(entry, str | bytes | int | float | np.generic):
        return zlib.crc32(str(entry).encode("utf-8", "replace"))
    path = getattr(entry, "__fspath__", None)
    return 0 if path is None else zlib.crc32(str(path()).encode())


def _shown(entry: Any) -> str:
    if isinstance(entry, np.ndarray | list | tuple):
        return _shown(entry[0]) + ", ..." if len(entry) else "()"
    return f"{entry:.6g}" if isinstance(entry, float) else str(entry)[:40]
