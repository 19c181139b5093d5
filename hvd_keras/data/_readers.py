"""Readers of rows by their numbers, from other projects' data sets.

Each reads by what the project has for that, its workers included. None of the
projects is imported here: who has its objects has imported it.

| Private name | Used to |
|---|---|
| `grain.DataLoader._data_source`, `_operations` | read its rows |
| `grain.DataLoader._read_options` | with as many threads |
| `grain.DataLoader.multiprocessing_options` | in as many workers |
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

Array = np.ndarray[Any, Any]
Collate = Callable[[Any], Any]


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

    def batches(
        self, rows: list[Array], seeds: tuple[int, int]
    ) -> Iterator[Any]:
        """Yields a batch of the rows of each vector of numbers.

        Args:
            rows: The vectors.
            seeds: Decide on what is random in a row, with its number.
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


def _refused(data: Any, wanted: str) -> TypeError:
    name = f"{type(data).__module__.split('.')[0]}'s {type(data).__name__}"
    return TypeError(
        f"`data` must have rows that can be read by their numbers: {wanted}. "
        f"Received: {name}."
    )


def _as_arrays(batch: Any) -> Any:
    """Returns the batch with tensors of torch as arrays, lists as tuples."""
    if isinstance(batch, dict):
        return {key: _as_arrays(part) for key, part in batch.items()}
    if isinstance(batch, list | tuple):
        return tuple(map(_as_arrays, batch))
    return np.asarray(batch)


# ---- torch ----


def _torch_reader_of(
    torch_data: Any, data: Any, collate: Collate | None
) -> Reader | None:
    if not isinstance(data, torch_data.DataLoader):
        return None
    if isinstance(data.dataset, torch_data.IterableDataset):
        raise _refused(data, "a DataLoader of a map-style dataset")
    samplers = torch_data.SequentialSampler, torch_data.RandomSampler
    if type(data.sampler) not in samplers or data.batch_size is None:
        raise _refused(
            data,
            "a DataLoader with `batch_size`, and `shuffle` instead of a "
            "sampler of its own",
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
        self._collate = collate or loader.collate_fn

    def batches(
        self, rows: list[Array], seeds: tuple[int, int]
    ) -> Iterator[Any]:
        given = self._loader
        loader = self._make(
            given.dataset,
            batch_sampler=[numbers.tolist() for numbers in rows],
            num_workers=given.num_workers,
            collate_fn=self._collate,
            timeout=given.timeout,
            worker_init_fn=given.worker_init_fn,
            multiprocessing_context=given.multiprocessing_context,
            prefetch_factor=given.prefetch_factor,
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
        return _GrainReader(grain, data, collate)
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
    return _GrainLoaderReader(grain, data, collate)


class _GrainReader(Reader):
    """Reads a MapDataset by Grain's threads."""

    def __init__(self, grain: Any, dataset: Any, collate: Any) -> None:
        super().__init__(len(dataset))
        self._grain, self._dataset = grain, dataset
        self._collate = collate or _stacked

    def batches(
        self, rows: list[Array], seeds: tuple[int, int]
    ) -> Iterator[Any]:
        return _in_batches(self._read(rows, seeds), rows, self._collate)

    def _read(self, rows: list[Array], seeds: tuple[int, int]) -> Iterator[Any]:
        numbers, dataset = np.concatenate(rows), self._dataset
        own = self._grain.MapDataset.range(len(numbers))
        own = own.map(lambda place: dataset[int(numbers[place])])
        return iter(own.to_iter_dataset())


class _GrainLoaderReader(_GrainReader):
    """Reads by a DataLoader like the given one, with its workers."""

    def __init__(self, grain: Any, loader: Any, collate: Any) -> None:
        super().__init__(grain, loader._data_source, collate)
        self._loader = loader

    def _read(self, rows: list[Array], seeds: tuple[int, int]) -> Iterator[Any]:
        given = self._loader
        loader = self._grain.DataLoader(
            data_source=given._data_source,
            sampler=_Sampler(self._grain, np.concatenate(rows), seeds),
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


def _in_batches(
    elements: Iterator[Any], rows: list[Array], collate: Collate
) -> Iterator[Any]:
    for numbers in rows:
        yield _as_arrays(collate([next(elements) for _ in numbers]))


def _stacked(elements: list[Any]) -> Any:
    return keras.tree.map_structure(lambda *parts: np.stack(parts), *elements)
