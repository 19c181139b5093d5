"""Readers of rows by their numbers, from other projects' data sets.

Each reads by what the project has for that, its workers included. None of the
projects is imported here: who has its objects has imported it.

| Private name | Used to |
|---|---|
| `grain.DataLoader._data_source`, `_operations` | read its rows |
| `grain.DataLoader._sampler`, `_shard_options` | know which it reads |
| `grain.samplers.IndexSampler._num_records` | the same; also `Sequential...` |
| `grain.samplers.IndexSampler._shuffle` | know whether to shuffle |
| `grain.DataLoader._read_options` | with as many threads |
| `grain.DataLoader.multiprocessing_options` | in as many workers |
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

Array = np.ndarray[Any, Any]
Collate = Callable[[Any], Any]
_NUM_PROBES = 2  # rows that ranks compare


class Reader:
    """Reads rows by their numbers.

    Args:
        num_rows: How many there are.
        batch_size: Rows of a batch, if the data say so.
        shuffle: Whether the data are to be shuffled.
    """

    def __init__(
        self,
        num_rows: int,
        *,
        batch_size: int | None = None,
        shuffle: bool = False,
    ) -> None:
        self.num_rows = num_rows
        self.batch_size = batch_size
        self.shuffle = shuffle

    @functools.cached_property
    def first_rows(self) -> Any:
        """A batch of the first rows, which is as others are; () if empty."""
        numbers = np.arange(min(_NUM_PROBES, self.num_rows))
        return next(self.batches([numbers], (0, 0))) if len(numbers) else ()

    def batches(
        self, rows: list[Array], seeds: tuple[int, int]
    ) -> Iterator[Any]:
        """Yields a batch of the rows of each vector of numbers.

        Args:
            rows: The vectors.
            seeds: A seed and the number of the epoch. Both may decide on what
                is random in a row, with its number.
        """
        raise NotImplementedError


def reader_of(data: Any, collate: Collate | None) -> Reader | None:
    """Returns a reader of `data`; None if it is nothing of these projects.

    Raises:
        TypeError: It is, but its rows cannot be read by their numbers.
    """
    for module, make in (
        ("torch.utils.data", _torch_reader_of),
        ("datasets", _hugging_face_reader_of),
        ("grain", _grain_reader_of),
    ):
        loaded = sys.modules.get(module)
        reader = None if loaded is None else make(loaded, data, collate)
        if reader is not None:
            return reader
    return None


def _refused(data: Any, wanted: str, received: str = "") -> TypeError:
    name = f"{type(data).__module__.split('.')[0]}'s {type(data).__name__}"
    return TypeError(
        f"`data` must have rows that can be read by their numbers: {wanted}. "
        f"Received: {name}{received}."
    )


def _as_arrays(batch: Any) -> Any:
    """Returns the batch with tensors of torch as arrays, lists as tuples."""
    if isinstance(batch, dict):
        return {key: _as_arrays(part) for key, part in batch.items()}
    if isinstance(batch, list | tuple):
        return tuple(map(_as_arrays, batch))
    return np.asarray(batch)


# ---- torch ----

_STRIDE = 1_000_003  # between the seeds of two passes


def _torch_reader_of(
    torch_data: Any, data: Any, collate: Collate | None
) -> Reader | None:
    if not isinstance(data, torch_data.DataLoader):
        return None
    if isinstance(data.dataset, torch_data.IterableDataset):
        raise _refused(
            data,
            "a DataLoader of a map-style dataset. For one that only yields see "
            "docs/loaders.md#generators",
            f" of {type(data.dataset).__name__}, an IterableDataset",
        )
    samplers = torch_data.SequentialSampler, torch_data.RandomSampler
    if type(data.sampler) not in samplers or data.batch_size is None:
        raise _refused(
            data,
            "a DataLoader with `batch_size`, and `shuffle` instead of a "
            "sampler of its own, for `hvd.shard` deals the rows out",
            f" with sampler={type(data.sampler).__name__}, "
            f"batch_size={data.batch_size}",
        )
    return _TorchReader(torch_data, data, collate)


class _TorchReader(Reader):
    """Reads by a DataLoader like the given one, with its workers."""

    def __init__(self, torch_data: Any, loader: Any, collate: Any) -> None:
        super().__init__(
            len(loader.dataset),
            batch_size=loader.batch_size,
            shuffle=type(loader.sampler) is torch_data.RandomSampler,
        )
        self._make, self._loader = torch_data.DataLoader, loader
        self._num_passes = 0
        self._collate = collate or loader.collate_fn

    def batches(
        self, rows: list[Array], seeds: tuple[int, int]
    ) -> Iterator[Any]:
        import torch

        given = self._loader
        # A loader draws the seeds of its workers, also without workers. Those
        # of a rank, in each pass others; what others draw stays as it is.
        self._num_passes += 1
        generator = torch.Generator()
        generator.manual_seed(
            (torch.initial_seed() + self._num_passes * _STRIDE) % (1 << 63)
        )
        loader = self._make(
            given.dataset,
            batch_sampler=[numbers.tolist() for numbers in rows],
            num_workers=given.num_workers,
            collate_fn=self._collate,
            timeout=given.timeout,
            worker_init_fn=given.worker_init_fn,
            multiprocessing_context=given.multiprocessing_context,
            prefetch_factor=given.prefetch_factor,
            generator=generator,
        )
        return map(_as_arrays, loader)


# ---- Hugging Face ----


def _hugging_face_reader_of(
    datasets: Any, data: Any, collate: Collate | None
) -> Reader | None:
    streams = getattr(datasets, "IterableDataset", ())
    if isinstance(data, streams) or (
        isinstance(data, dict) and type(data).__module__.startswith("datasets")
    ):
        raise _refused(data, "a `datasets.Dataset`")
    if not isinstance(data, datasets.Dataset):
        return None
    return _HuggingFaceReader(data, collate)


class _HuggingFaceReader(Reader):
    """Reads rows as a dict of columns."""

    def __init__(self, dataset: Any, collate: Any) -> None:
        super().__init__(len(dataset))
        if dataset.format["type"] is None:
            dataset = dataset.with_format("numpy")
        self._dataset, self._collate = dataset, collate

    def batches(
        self, rows: list[Array], seeds: tuple[int, int]
    ) -> Iterator[Any]:
        for numbers in rows:
            batch = self._dataset[numbers.tolist()]
            yield _as_arrays(self._collate(batch) if self._collate else batch)


# ---- Grain ----


def _grain_reader_of(
    grain: Any, data: Any, collate: Collate | None
) -> Reader | None:
    if isinstance(data, grain.IterDataset):
        raise _refused(data, "a `grain.MapDataset`, before `to_iter_dataset`")
    if isinstance(data, grain.MapDataset):
        return _GrainMapReader(grain, data, collate)
    if not isinstance(data, grain.DataLoader):
        return None
    cuts = tuple(
        getattr(grain.transforms, name)
        for name in ("Batch", "Filter")
        if hasattr(grain.transforms, name)
    )
    if any(isinstance(each, cuts) for each in data._operations):
        raise _refused(
            data, "a DataLoader that neither filters nor makes batches"
        )
    samplers = grain.samplers.IndexSampler, grain.samplers.SequentialSampler
    if (
        type(data._sampler) not in samplers
        or data._shard_options.shard_count > 1
    ):
        raise _refused(
            data,
            "a DataLoader with an IndexSampler or SequentialSampler, and with "
            "no shards of its own",
        )
    return _GrainLoaderReader(grain, data, collate)


class _GrainReader(Reader):
    """Makes batches of what Grain reads in order."""

    def __init__(
        self, grain: Any, num_rows: int, collate: Any, **options: Any
    ) -> None:
        super().__init__(num_rows, **options)
        self._grain = grain
        self._collate = collate or _stacked

    def batches(
        self, rows: list[Array], seeds: tuple[int, int]
    ) -> Iterator[Any]:
        elements = self._read(np.concatenate(rows), seeds)
        for numbers in rows:
            own = [next(elements) for _ in numbers]
            yield _as_arrays(self._collate(own))

    def _read(self, numbers: Array, seeds: tuple[int, int]) -> Iterator[Any]:
        """Returns the rows of these numbers."""
        raise NotImplementedError


class _GrainMapReader(_GrainReader):
    """Reads a MapDataset by Grain's threads."""

    def __init__(self, grain: Any, dataset: Any, collate: Any) -> None:
        super().__init__(grain, len(dataset), collate)
        self._dataset = dataset

    def _read(self, numbers: Array, seeds: tuple[int, int]) -> Iterator[Any]:
        dataset, (_, epoch) = self._dataset, seeds
        # Behind its end a MapDataset has its next epoch: the same rows, with
        # other random numbers.
        numbers = numbers + epoch * self.num_rows
        own = self._grain.MapDataset.range(len(numbers))
        own = own.map(lambda place: dataset[int(numbers[place])])
        return iter(own.to_iter_dataset())


class _GrainLoaderReader(_GrainReader):
    """Reads by a DataLoader like the given one, with its workers."""

    def __init__(self, grain: Any, loader: Any, collate: Any) -> None:
        sampler = loader._sampler
        shuffle = getattr(sampler, "_shuffle", False)
        super().__init__(grain, sampler._num_records, collate, shuffle=shuffle)
        self._loader = loader

    def _read(self, numbers: Array, seeds: tuple[int, int]) -> Iterator[Any]:
        given = self._loader
        loader = self._grain.DataLoader(
            data_source=given._data_source,
            sampler=_Sampler(self._grain, numbers, seeds),
            operations=given._operations,
            shard_options=self._grain.sharding.NoSharding(),
            worker_count=given.multiprocessing_options.num_workers,
            read_options=given._read_options,
        )
        return iter(loader)


class _Sampler:
    """Gives rows by their numbers, once. What is random depends on these."""

    def __init__(
        self, grain: Any, numbers: Array, seeds: tuple[int, int]
    ) -> None:
        self._make = grain.RecordMetadata
        self._numbers, self._seeds = numbers, seeds

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, index: int) -> Any:
        number = int(self._numbers[index])
        random = np.random.default_rng([*self._seeds, number])
        return self._make(index=index, record_key=number, rng=random)


def _stacked(elements: list[Any]) -> Any:
    return keras.tree.map_structure(lambda *parts: np.stack(parts), *elements)
