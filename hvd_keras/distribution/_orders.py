"""The orders in which Keras alone would take the shuffled rows of a script.

Keras draws an order when it begins to read. Each kind of data draws from a
generator of its own, which the script may have seeded; so what it draws
afterwards depends on this, too. Since Keras 3.16 the number of the epoch is the
seed.

| Data | Keras's order | Since 3.16 |
|---|---|---|
| Arrays on TensorFlow | `tf.random.shuffle`, in `ArrayDataAdapter` | \
`stateless_shuffle`, there |
| Arrays on JAX | `np.random.permutation` | `default_rng` |
| Arrays on torch | `RandomSampler` | `torch.randperm` |
| `PyDataset` | `random.shuffle` | `random.Random` |
| A loader, on torch | its sampler | the same |

| Private name | Used to |
|---|---|
| `ArrayDataAdapter` | shuffle as Keras does on TensorFlow |
| `ArrayDataAdapter._epoch` | know whether Keras shuffles by it |
| `TorchEpochIterator._get_iterator` (replaced) | let loaders draw their own \
seeds alike |
| `tensorflow.python.eager.context.Context._seed` | know whether the script \
has set a seed |
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import pickle
import random
import sys
import threading
import types
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from hvd_keras import objects
from hvd_keras._common.replacements import replace
from hvd_keras._common.seeds import GivenSeed
from hvd_keras._keras import random_streams
from hvd_keras._keras.lookup import private_module
from hvd_keras.data._pass import Array, OfEpoch, Shuffle
from hvd_keras.data._py_share import is_read_here
from hvd_keras.data._structures import checksum_of

_fits = itertools.count()


def _agreeing(draw: Callable[[int], Array]) -> Shuffle:
    """Returns what draws the order of each pass, as Keras would.

    Keras may begin a pass again, and draws again then.
    """

    def drawn(num_items: int, num_before: int) -> Array:
        with random_streams.common():
            for _ in range(num_before):
                draw(num_items)
                _draw_starts()
            return agreed(draw(num_items))

    return drawn


def _draw_starts() -> None:
    """Draws what loaders of torch draw as they begin, the seeds of workers.

    Keras begins one for a pass, and one more where the pass has ended.
    """
    if keras.backend.backend() == "torch":
        import torch

        for _ in range(2):
            torch.empty((), dtype=torch.int64).random_()


def agreed(order: Array) -> Array:
    """Returns an order of rank 0's; the others have mostly drawn the same."""
    found = objects.allgather_object(checksum_of(order), name="fit/order")
    if len(set(found)) == 1:
        return order
    return np.asarray(objects.broadcast_object(order, 0, name="fit/order/0"))


def draw_alike() -> None:
    """Lets ranks on torch draw alike what each loader draws as it begins."""
    if keras.backend.backend() == "torch":
        owner = private_module("backend.torch.trainer").TorchEpochIterator
        replace(owner, "_get_iterator", _with_common_start)


def _with_common_start(original: Any) -> Any:
    return lambda self: _CommonStart(original(self))


class _CommonStart:
    """A loader of torch that draws the seeds of its workers in common."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        with random_streams.common():
            return iter(self._loader)


def of_rows(num_rows: int, batch_size: int, shuffle: bool | str) -> Any:
    """Returns the `shuffle` and `seed` of `hvd.shard` for arrays.

    Args:
        num_rows: How many there are.
        batch_size: Of all ranks together.
        shuffle: That of `fit`, which is true.
    """
    size = batch_size if shuffle == "batch" else num_rows
    backend = keras.backend.backend()
    if backend == "tensorflow":
        if not (_has_seed() or _is_by_epoch()):
            return {"shuffle": True, "seed": next_seed()}
        # It is the same in each pass.
        fixed = agreed(_drawn_by_tensorflow(num_rows, size, shuffle))
        # A comparison of `hvdrun --verify` leaves out the last rows.
        return {"shuffle": lambda num_rows, _: fixed[fixed < num_rows]}
    if _is_by_epoch():
        of_epoch = _by_numpy if backend == "jax" else _by_torch
        size = size if shuffle == "batch" else 0
        return {"shuffle": OfEpoch(functools.partial(of_epoch, size))}
    if shuffle != "batch":
        return {
            "shuffle": _agreeing(
                np.random.permutation if backend == "jax" else _sampled
            )
        }
    draw = np.random.permutation if backend == "jax" else _permuted_by_torch

    def draw_all(num_items: int) -> Array:
        return _in_batches(num_items, size, lambda _, num: draw(num))

    return {"shuffle": _agreeing(draw_all)}


def _in_batches(
    num_rows: int, batch_size: int, draw: Callable[[int, int], Array]
) -> Array:
    """Returns an order in which rows change places within batches alone.

    Args:
        num_rows: Of all batches.
        batch_size: Of all but the last one.
        draw: Gets the number of a batch, and how many rows it has.
    """
    begins = range(0, num_rows, batch_size)
    parts = [
        begin + draw(number, min(batch_size, num_rows - begin))
        for number, begin in enumerate(begins)
    ]
    return _joined(parts)


def _joined(parts: list[Array]) -> Array:
    """Returns all rows; there may be none."""
    return np.concatenate([np.zeros(0, np.int64), *parts])


def of_batches(data: keras.utils.PyDataset) -> Any:
    """Returns the `shuffle` and `seed` of `hvd.shard` for a `PyDataset`."""
    if _is_by_epoch():
        return {"shuffle": OfEpoch(_shuffled_in_epoch)}
    if not is_read_here(data):
        return {"shuffle": True, "seed": next_seed()}
    return {"shuffle": _agreeing(_shuffled)}


# Held by who draws from NumPy's or Python's generator, which threads share.
_drawing = threading.RLock()


def reading() -> contextlib.AbstractContextManager[Any]:
    """Returns a context in which no other thread is in `drawing_alike`."""
    return _drawing


@contextlib.contextmanager
def drawing_alike() -> Iterator[None]:
    """A context in which all ranks draw the same numbers; all enter it.

    Where a thread that reads ahead has drawn, how many it was differs by rank.
    """
    with reading():
        states = np.random.get_state(), random.getstate()
        checksum = zlib.crc32(pickle.dumps(states))
        found = objects.allgather_object(checksum, name="fit/numbers")
        if len(set(found)) > 1:
            of_numpy, (version, numbers, rest) = objects.broadcast_object(
                states, 0, name="fit/numbers/0"
            )
            np.random.set_state(tuple(of_numpy))
            random.setstate((version, tuple(numbers), rest))
        yield


def of_loader(loader: Any) -> Any:
    """Returns the `shuffle` and `seed` of `hvd.shard` for a loader of torch."""
    import torch

    sampler = loader.sampler
    is_plain = loader.generator is None and loader.num_workers == 0
    is_random = isinstance(sampler, torch.utils.data.RandomSampler)
    if not (is_plain and is_random and keras.backend.backend() == "torch"):
        return {"seed": next_seed()}
    return {"shuffle": _agreeing(lambda _: np.fromiter(sampler, np.int64))}


def next_seed() -> int:
    """Returns a seed, equal on all ranks, that follows that of the script.

    What the script draws afterwards is as without it.
    """
    before = random.getstate()
    seed = random.getrandbits(31) ^ next(_fits)
    random.setstate(before)
    return int(objects.broadcast_object(seed, 0, name="distribution/seed"))


def _has_seed() -> bool:
    """Whether the script has set a seed for TensorFlow."""
    context = sys.modules["tensorflow.python.eager.context"].context()
    return not isinstance(context._seed, GivenSeed | types.NoneType)


def _is_by_epoch() -> bool:
    """Whether Keras shuffles by the number of the epoch, as since 3.16."""
    return hasattr(_adapter_of(np.zeros(1)), "_epoch")


def _adapter_of(rows: Array, **options: Any) -> Any:
    adapters = private_module("trainers.data_adapters.array_data_adapter")
    return adapters.ArrayDataAdapter(rows, **options)


def _drawn_by_tensorflow(
    num_rows: int, batch_size: int, shuffle: bool | str
) -> Array:
    adapter = _adapter_of(
        np.arange(num_rows), batch_size=batch_size, shuffle=shuffle
    )
    batches = adapter.get_tf_dataset().as_numpy_iterator()
    flat = [keras.tree.flatten(batch)[0] for batch in batches]
    return _joined(flat)


def _sampled(num_items: int) -> Array:
    import torch

    sampler = torch.utils.data.RandomSampler(range(num_items))
    return np.fromiter(sampler, np.int64)


def _permuted_by_torch(num_items: int) -> Array:
    import torch

    return torch.randperm(num_items).numpy()


def _shuffled(num_items: int) -> Array:
    numbers = list(range(num_items))
    random.shuffle(numbers)
    return np.array(numbers)


def _by_numpy(batch_size: int, num_rows: int, epoch: int) -> Array:
    """Does what Keras does since 3.16 on JAX; a batch size of 0: with all."""
    if not batch_size:
        return np.random.default_rng(epoch).permutation(num_rows)
    return _in_batches(
        num_rows,
        batch_size,
        lambda number, num: np.random.default_rng(epoch + number).permutation(
            num
        ),
    )


def _by_torch(batch_size: int, num_rows: int, epoch: int) -> Array:
    """Does what Keras does since 3.16 on torch; a batch size of 0: with all."""
    import torch

    generator = torch.Generator().manual_seed(epoch)
    if not batch_size:
        return torch.randperm(num_rows, generator=generator).numpy()
    return _in_batches(
        num_rows,
        batch_size,
        lambda _, num: torch.randperm(num, generator=generator).numpy(),
    )


def _shuffled_in_epoch(num_items: int, epoch: int) -> Array:
    """Does what Keras does since 3.16, in the main process and in workers."""
    numbers = list(range(num_items))
    random.Random(epoch).shuffle(numbers)
    return np.array(numbers)
