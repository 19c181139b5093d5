"""Shares of data sets of torch, Hugging Face and Grain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras.data.position import Position, handle_of

pytestmark = pytest.mark.thorough(4)

NUM_ROWS = 23


class Rows:
    """Rows that are read by their numbers."""

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return np.float32([index]), np.float32([index * 10])


def of_torch(num_workers: int = 0) -> Any:
    data = pytest.importorskip("torch.utils.data")
    return data.DataLoader(
        Rows(), batch_size=3, shuffle=True, num_workers=num_workers
    )


def of_torch_workers() -> Any:
    return of_torch(num_workers=1)


def of_hugging_face() -> Any:
    datasets = pytest.importorskip("datasets")
    rows = np.arange(NUM_ROWS)[:, None]
    return datasets.Dataset.from_dict({"x": rows, "y": rows * 10})


def of_grain_map() -> Any:
    return pytest.importorskip("grain").MapDataset.source(Rows())


def of_grain_loader() -> Any:
    grain = pytest.importorskip("grain")
    sampler = grain.samplers.SequentialSampler(NUM_ROWS)
    return grain.DataLoader(
        data_source=Rows(),
        sampler=sampler,
        shard_options=grain.sharding.NoSharding(),
    )


@pytest.mark.parametrize(
    "make",
    [
        of_torch,
        pytest.param(of_torch_workers, marks=pytest.mark.thorough),
        of_hugging_face,
        of_grain_map,
        of_grain_loader,
    ],
)
def test_rows_of_a_loader_are_dealt_by_their_numbers(make: Any) -> None:
    options: dict[str, Any] = {"batch_size": 3, "shuffle": True}
    if make is of_hugging_face:
        options["collate"] = lambda batch: (batch["x"], batch["y"])
    share = hvd.shard(make(), **options)
    handle = handle_of(share)

    def rows_of(batches: Any) -> list[int]:
        own = []
        for x, y, *weights in batches:
            np.testing.assert_array_equal(x * 10, y)
            is_row = weights[0] > 0 if weights else np.ones(len(x), bool)
            own += np.asarray(x)[is_row, 0].astype(int).tolist()
        return own

    first = rows_of(share)
    gathered = [row for own in hvd.allgather_object(first) for row in own]
    assert sorted(gathered) == list(range(NUM_ROWS))
    assert gathered != list(range(NUM_ROWS))
    assert rows_of(share) != first
    handle.seek(Position(0, 3 * hvd.size()))
    assert rows_of(share) == first[3:]


def test_a_loader_says_how_many_rows_a_batch_has() -> None:
    share = hvd.shard(of_torch())
    assert len(share[0][0]) == 3


def test_what_is_random_in_a_row_of_grain_differs_by_epoch() -> None:
    grain = pytest.importorskip("grain")

    class Noise(grain.transforms.RandomMap):
        def random_map(self, row: Any, rng: Any) -> Any:
            return row[0], rng.random(1)

    data = grain.MapDataset.source(Rows()).seed(1).random_map(Noise())
    share = hvd.shard(data, batch_size=3)
    first, second = (
        np.concatenate([batch[1] for batch in share]) for _ in range(2)
    )
    assert not np.isin(first, second).any()
    handle_of(share).seek(Position(0, 0))
    again = np.concatenate([batch[1] for batch in share])
    np.testing.assert_array_equal(again, first)


def test_a_sampler_of_grain_says_which_rows_and_whether_to_shuffle() -> None:
    grain = pytest.importorskip("grain")

    def loader_of(sampler: Any) -> Any:
        return grain.DataLoader(
            data_source=Rows(),
            sampler=sampler,
            shard_options=grain.sharding.NoSharding(),
        )

    sampler = grain.samplers.IndexSampler(
        NUM_ROWS - 5,
        shard_options=grain.sharding.NoSharding(),
        shuffle=True,
        seed=1,
        num_epochs=1,
    )
    rows = []
    for x, _, *weights in hvd.shard(loader_of(sampler), batch_size=3):
        is_row = weights[0] > 0 if weights else np.ones(len(x), bool)
        rows += np.asarray(x)[is_row, 0].astype(int).tolist()
    gathered = [row for own in hvd.allgather_object(rows) for row in own]
    assert sorted(gathered) == list(range(NUM_ROWS - 5))
    assert gathered != sorted(gathered)

    class Own(grain.samplers.IndexSampler):
        pass

    own = Own(3, shard_options=grain.sharding.NoSharding(), num_epochs=1)
    with pytest.raises(TypeError, match="IndexSampler"):
        hvd.shard(loader_of(own), batch_size=1)


def test_streams_are_refused() -> None:
    data = pytest.importorskip("torch.utils.data")

    class Stream(data.IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(TypeError, match="map-style"):
        hvd.shard(data.DataLoader(Stream(), batch_size=1))
    sampler = data.WeightedRandomSampler([1.0, 2.0], 2)
    with pytest.raises(TypeError, match="sampler"):
        hvd.shard(data.DataLoader(Rows(), batch_size=1, sampler=sampler))


def test_streams_of_grain_and_hugging_face_are_refused() -> None:
    with pytest.raises(TypeError, match="MapDataset"):
        hvd.shard(of_grain_map().to_iter_dataset(), batch_size=1)
    with pytest.raises(TypeError, match=r"datasets\.Dataset"):
        hvd.shard(of_hugging_face().to_iterable_dataset(), batch_size=1)
