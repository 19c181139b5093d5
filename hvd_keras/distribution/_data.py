"""Shares of what a script gives to Keras's `fit`, `evaluate` and `predict`.

Each batch of the script is a global batch.
"""

from __future__ import annotations

import itertools
import math
import sys
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from hvd_keras.data import shard
from hvd_keras.data._arguments import is_read_once
from hvd_keras.data._counts import source_of
from hvd_keras.data._py_share import is_read_here
from hvd_keras.data.position import Handle, handle_of
from hvd_keras.distribution import _orders

_BATCH_SIZE = 32  # Keras's


def shared(
    x: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    batch_size: int | None,
    steps: int | None = None,
    shuffle: bool | str = False,
) -> Any:
    """Returns this rank's share of data that each rank gives to Keras.

    Args:
        x: What the first argument of `fit` may be.
        y: The second.
        sample_weight: Weights of the rows.
        batch_size: Rows of a global batch; None: those of arrays are dealt
            into `steps` batches, or 32.
        steps: The batches of a pass, as Keras takes them.
        shuffle: Whether arrays, or batches of a `PyDataset`, are shuffled, as
            `fit` takes it.

    Raises:
        TypeError: Nobody can know the rows of `x`.
    """
    if source_of(x) is not None:  # the script has shared it
        return x
    tf = sys.modules.get("tensorflow")
    if tf is not None and isinstance(x, tf.data.Dataset):
        from hvd_keras.data import _random_maps

        whole: Any = x
        _random_maps.go_on_alike(whole)
        if not hasattr(whole, "_hvd_share"):  # a second `fit` goes on with it
            whole._hvd_share = shard(whole, batched=True)
        return whole._hvd_share
    order: dict[str, Any] = {}
    if isinstance(x, keras.utils.PyDataset):
        if shuffle and x.num_batches is not None:
            order = _orders.of_batches(x)
        share = shard(x, batched=True, **order)
        share.drawing_alike = _orders.drawing_alike
        if is_read_here(x):
            share.reading = _orders.reading
        return share
    if hasattr(x, "collate_fn"):  # of torch; it says whether it shuffles
        order = _orders.of_loader(x)
        return shard(x, global_batch_size=x.batch_size, **order)
    if is_read_once(x):
        replayed = _Replayed(x)
        whole = _generated(replayed)
        if replayed.is_read_late:
            whole._hvd_is_read_late = True
        share = shard(whole, batched=True)
        replayed.handle = handle_of(share)
        return share
    packed = keras.utils.pack_x_y_sample_weight(
        *as_arrays((x, y, sample_weight))
    )
    num_rows = len(keras.tree.flatten(packed)[0])
    size = batch_size or _default_batch_size(num_rows, steps)
    if shuffle:
        order = _orders.of_rows(num_rows, size, shuffle)
    return shard(packed, global_batch_size=size, **order)


def _default_batch_size(num_rows: int, steps: int | None) -> int:
    """Returns the batch size that Keras takes for arrays without one."""
    limit = getattr(keras.config, "max_steps_per_epoch", lambda: None)()
    if limit and (not steps or limit < steps):
        steps = limit
    return math.ceil(num_rows / steps) if steps else _BATCH_SIZE


def are_arrays(x: Any) -> bool:
    """Whether Keras takes targets and weights beside `x`."""
    tf = sys.modules.get("tensorflow")
    return not (
        isinstance(x, keras.utils.PyDataset)
        or is_read_once(x)
        or hasattr(x, "collate_fn")
        or (tf is not None and isinstance(x, tf.data.Dataset))
    )


def as_arrays(structure: Any) -> Any:
    """Returns the arrays that Keras makes of arrays and of what pandas has."""
    return keras.tree.map_structure(_as_array, structure)


def _as_array(value: Any) -> Any:
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
        value = value[:, np.newaxis] if value.ndim == 1 else value
    floatx = keras.config.floatx()
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value.astype(floatx, copy=False)
    if keras.ops.is_tensor(value) and keras.backend.is_float_dtype(value.dtype):
        return keras.ops.cast(value, floatx)
    return value


_MOST_KEPT = 64  # batches; Keras builds by one, and tf.data fetches a few more
_NUM_PEEKED = 2  # Keras's NUM_BATCHES_FOR_TENSOR_SPEC


class _Replayed:
    """What a generator yields, as Keras reads it.

    Keras looks at the first two batches. Each iterator begins with these, also
    those by which it builds a model or validates, and goes on where the one
    before has ended. On TensorFlow, Keras fetches ahead, and loses what it has
    fetched. There, each iteration begins anew until `fit` trains on it.

    Args:
        batches: The generator.
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self.handle: Handle | None = None  # of the share
        # Whether nothing is fetched before Keras asks for it.
        self.is_read_late = keras.backend.backend() != "tensorflow"
        self._batches = batches
        self._kept: list[Any] = []
        self._trains = False
        self._lock = threading.Lock()  # tf.data may still fill a buffer
        self._iteration = 0

    def first(self) -> Any:
        """Returns the first batch, which comes again; None if there is none."""
        num_batches = _NUM_PEEKED if self.is_read_late else 1
        self._kept = list(itertools.islice(self._batches, num_batches))
        return self._kept[0] if self._kept else None

    def __iter__(self) -> Iterator[Any]:
        with self._lock:
            self._iteration += 1
            iteration = self._iteration
            kept = list(self._kept)
            if (
                not self.is_read_late
                and self.handle is not None
                and self.handle.has_trained
            ):
                self._trains, self._kept = True, []
        yield from kept
        while True:
            with self._lock:
                if iteration != self._iteration:
                    return
                batch = next(self._batches, None)
                if batch is None:
                    return
                self._keep(batch)
            yield batch

    def _keep(self, batch: Any) -> None:
        if self.is_read_late:
            return
        if not self._trains:
            self._kept.append(batch)
        if len(self._kept) > _MOST_KEPT:  # this is no build
            self._trains, self._kept = True, []


def _generated(batches: _Replayed) -> Any:
    """Returns a dataset of what a generator yields."""
    try:
        import tensorflow as tf
    except ImportError:
        raise TypeError(
            "Data for all ranks must be arrays, a keras.utils.PyDataset, a "
            "DataLoader of torch or, where TensorFlow is installed, a "
            f"tf.data.Dataset or a generator. Received: {batches!r}."
        ) from None
    first = batches.first()
    if first is None:
        raise ValueError("`x` must yield batches. Received: an empty generator")
    if isinstance(first, list):
        first = tuple(first)

    def spec_of(part: Any) -> Any:
        array = np.asarray(part)
        return tf.TensorSpec([None] * array.ndim, array.dtype)

    def all_batches() -> Iterator[Any]:
        for batch in batches:
            yield tuple(batch) if isinstance(batch, list) else batch

    specs = keras.tree.map_structure(spec_of, first)
    return tf.data.Dataset.from_generator(
        all_batches, output_signature=specs
    ).map(lambda *parts: _shaped(tf, parts, first))


def _shaped(tf: Any, parts: Any, first: Any) -> Any:
    """Sets all lengths but that of a batch, which the first batch shows."""
    parts = parts if isinstance(first, tuple) else parts[0]

    def shape(tensor: Any, example: Any) -> Any:
        return tf.ensure_shape(tensor, [None, *np.shape(example)[1:]])

    return keras.tree.map_structure(shape, parts, first)
