"""Sees whether all ranks have given the same rows to `fit`, in any order."""

from __future__ import annotations

import math
import zlib
from typing import Any

import keras
import numpy as np

from hvd_keras import basics
from hvd_keras._gradients.distributed_class import distributed_parts_of
from hvd_keras._keras import advice, models
from hvd_keras._keras import calls as keras_calls
from hvd_keras._keras import epochs as keras_epochs
from hvd_keras._values import checksums
from hvd_keras.callbacks._arrays_behind import arrays_behind

_MOST_ROWS = 64
_MOST_BYTES = 1 << 22  # of an array; they take a few milliseconds
_OBJECT_BYTES = 1 << 12  # what takes as long to read as a string
_MOST_READ = 1 << 28  # of an array, of which one part in 64 is looked at


# Shapes and dtypes of arrays, a checksum of each that does not depend on the
# order of its rows, and one of some rows.
Sample = tuple[list[tuple[list[int], str]], list[int], list[int]]


def sample_of(model: Any, fit: keras_calls.Call | None) -> Sample | None:
    """Returns what tells the arrays of a beginning `fit` from other ones.

    It is None if nobody knows the arrays behind the data, or if ranks may have
    equal ones: with `steps_per_epoch` each may draw other rows of them, an own
    `train_step` may pick rows, and a process set may train with all rows.
    """
    if fit is None or keras_epochs.is_capped(fit) or may_share(model):
        return None
    try:
        arrays = keras_epochs.arrays_of(fit) or arrays_behind(fit.data)
        rows = [_rows_of(array) for array in arrays]
        # Equal rows, such as zeros, are the same in each share too.
        if all((some == some[:1]).all() for some in rows):
            return None
        return (
            [
                (list(map(int, array.shape)), str(some.dtype))
                for array, some in zip(arrays, rows, strict=True)
            ],
            list(map(_sum_of, arrays, rows)),
            list(map(_checksum, rows)),
        )
    except Exception:
        # Keras takes more kinds, such as sparse tensors. Advice must not end
        # the training.
        return None


def state_of_draws() -> int | None:
    """Returns a checksum of the state of `np.random`; None if it is unused.

    A process that sets no seed has a state of its own. So if it is the same on
    all ranks, they have set equal seeds and drawn equal numbers.
    """
    state: Any = np.random.get_state()
    if not isinstance(state, tuple):  # another generator than NumPy's default
        return None
    _, key, position, *_ = state
    if position == len(key):  # as it is after `seed`
        return None
    return checksums.checksum(np.append(key, np.uint32(position)))


def tell_if_equal(
    model: Any, given: list[tuple[Sample | None, int | None]]
) -> None:
    """Warns, on rank 0, if the samples of all ranks are equal.

    Args:
        model: The model that is trained.
        given: `sample_of` and `state_of_draws` of each rank.
    """
    samples, draws = zip(*given, strict=True)
    if basics.rank() or len(samples) == 1 or samples[0] is None:
        return
    if any(
        sample is None or sample[:2] != samples[0][:2] for sample in samples
    ):
        return
    received = "equal arrays on all ranks"
    if any(sample != samples[0] for sample in samples):
        received = "the same rows on all ranks, in other orders"
    if draws[0] is not None and len(set(draws)) == 1:
        received += ", which have drawn the same numbers from `np.random`"
    advice.tell_of_same_data(model, received)


def may_share(model: Any) -> bool:
    """Whether all ranks may rightly be given the same rows."""
    if models.has_our_strategy(model) or advice.has_own_train_step(model):
        return True
    return any(
        part.hvd_settings.reduce.process_set.size() != basics.size()
        for optimizer in models.optimizers_of(model)
        for part in distributed_parts_of(optimizer)
    )


def _rows_of(array: Any) -> np.ndarray[Any, Any]:
    """Returns some rows of an array, tensor or table, evenly spread."""
    num_rows = array.shape[0]
    array = getattr(array, "iloc", array)  # of pandas
    first = _as_numpy(array[:1])
    most = min(_MOST_ROWS, max(2, _MOST_BYTES // max(1, first.nbytes)))
    return _as_numpy(array[:: max(1, math.ceil(num_rows / most))])


def _sum_of(array: Any, some: np.ndarray[Any, Any]) -> int:
    """Returns a checksum of all rows, or of a part of each, in any order.

    Args:
        array: The rows.
        some: Some of them. Their checksum stands for the rows where it would
            take too long to read all.
    """
    row_bytes = _OBJECT_BYTES if some.dtype.hasobject else some[:1].nbytes
    if array.shape[0] * row_bytes > _MOST_READ:
        return _checksum(some)
    rows = _as_numpy(array).reshape(array.shape[0], -1)
    if rows.dtype.hasobject:  # strings
        return sum(zlib.crc32(repr(row).encode()) for row in rows.tolist())
    size = rows.dtype.itemsize
    bits = rows.view(f"u{size}" if size in (1, 2, 4, 8) else "u1")
    bits = bits[:, :: math.ceil(bits.nbytes / _MOST_BYTES)]
    return checksums.checksum(bits.sum(axis=0, dtype=np.uint64))


def _as_numpy(rows: Any) -> np.ndarray[Any, Any]:
    if keras.ops.is_tensor(rows):
        rows = keras.ops.convert_to_numpy(rows)
    return np.asarray(rows)


def _checksum(rows: np.ndarray[Any, Any]) -> int:
    if rows.dtype.hasobject:  # strings; the array holds their addresses
        text = repr(rows.tolist()).encode()
        rows = np.frombuffer(text, np.uint8)
    return checksums.checksum(rows)
