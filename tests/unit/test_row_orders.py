"""Orders of rows: each row once, orders alike in nothing."""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from hvd_keras.data._numbering import Numbering
from hvd_keras.data._record_index import Index
from hvd_keras.data._row_orders import Order, permuted
from hvd_keras.distribution import _orders

Array = np.ndarray[Any, Any]


def whole(order: Order, number: tuple[int, int]) -> Array:
    parts = range(order.num_parts)
    return np.concatenate([order.part(np.array(number), p) for p in parts])


@pytest.mark.parametrize("shuffle", [None, "global", "blocks"])
@pytest.mark.parametrize("count", [1, 2, 3, 4096, 4097, 20_000])
def test_each_row_comes_once(shuffle: str | None, count: int) -> None:
    begins = np.append(np.arange(0, count, 37), count)
    order = Order(begins, shuffle, 1, 5)
    for number in ((0, 0), (7, 0), (7, 1)):
        rows = whole(order, number)
        assert np.array_equal(np.sort(rows), np.arange(count))


def test_all_orders_of_few_rows_are_equally_likely() -> None:
    found = collections.Counter(
        tuple(permuted(np.arange(4), 4, [seed, 1])) for seed in range(2400)
    )
    assert len(found) == 24
    chi_squared = sum((count - 100) ** 2 / 100 for count in found.values())
    assert chi_squared < 50  # 1 in 1,000 exceeds it; the seeds are fixed


def test_a_row_comes_at_any_place() -> None:
    found = [permuted(np.array([0]), 100, [5, epoch]) for epoch in range(5000)]
    counts = np.bincount(np.concatenate(found), minlength=100)
    assert ((counts - 50) ** 2 / 50).sum() < 150


@pytest.mark.parametrize("keys", [([1, 2], [1, 3]), ([1, 2], [2, 2])])
def test_orders_are_not_alike(keys: tuple[list[int], list[int]]) -> None:
    one, other = (permuted(np.arange(24_000), 24_000, key) for key in keys)
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.03
    assert (one == other).sum() < 8


def test_orders_are_the_same_everywhere() -> None:
    """Ranks compute them apart, and a checkpoint tells a place in one."""
    found = permuted(np.arange(10), 10, [1, 2])
    assert found.tolist() == [8, 6, 3, 7, 1, 9, 5, 0, 2, 4]
    found = permuted(np.arange(5), 1000, [1, 2])
    assert found.tolist() == [800, 304, 633, 157, 142]
    order = Order(np.array([0, 3, 9]), None, seed=1, window=5)
    assert order.part(np.array([1, 2]), 0).tolist() == list(range(9))


def test_a_window_has_few_blocks() -> None:
    begins = np.arange(0, 10_001, 100)
    order = Order(begins, "blocks", 1, 4)
    for part in range(order.num_parts):
        rows = order.part(np.array([0, 0]), part)
        assert len(set(rows // 100)) == 4
        assert len(rows) == 400
        assert (np.diff(rows) != 1).sum() > 300


def index_of(count: int, damaged: list[int], block: int) -> Index:
    firsts = np.arange(0, count, block)
    blocks = np.stack([firsts * 100, firsts], axis=1).tobytes()
    bad = np.array(damaged, np.int64).tobytes()
    return Index(count * 100, 0, count, 7, blocks, bad, 0)


def test_damaged_records_are_no_rows() -> None:
    indexes = [
        index_of(10, [0, 4, 5], 4),
        index_of(0, [], 4),
        index_of(8, [0, 1, 2, 3], 4),
        index_of(3, [2], 1),
    ]
    numbering = Numbering(indexes)
    assert numbering.num_rows == 7 + 4 + 2
    assert numbering.num_damaged == 8
    numbers = numbering.numbers_of(np.arange(13))
    files, records = numbering.places_of(numbers)
    assert files.tolist() == [0] * 7 + [2] * 4 + [3] * 2
    assert records.tolist() == [1, 2, 3, 6, 7, 8, 9, 4, 5, 6, 7, 0, 1]
    assert numbering.begins.tolist() == [0, 3, 5, 7, 11, 12, 13]
    other = Numbering([indexes[0], index_of(8, [], 4)])
    assert set(other.numbers_of(np.arange(13))).isdisjoint(numbers)


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_orders_of_keras_change_places_within_batches(backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    draw = {"jax": _orders._by_numpy, "torch": _orders._by_torch}[backend]
    assert sorted(draw(0, 11, 2)) == [*range(11)]
    assert not np.array_equal(draw(0, 11, 2), draw(0, 11, 3))
    found = draw(4, 11, 2)
    assert not np.array_equal(found, np.arange(11))
    for begin in range(0, 11, 4):
        part = sorted(found[begin : begin + 4])
        assert part == [*range(begin, min(begin + 4, 11))]
