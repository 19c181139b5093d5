"""The order of rows of whole files: each once, all lanes end together."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_keras.data._lanes import Lanes


@pytest.mark.parametrize("counts", [[1], [5, 0, 9000, 17, 3], [700] * 90])
@pytest.mark.parametrize("num_lanes", [1, 2, 5, 64])
def test_each_row_of_a_lane_has_a_place(
    counts: list[int], num_lanes: int
) -> None:
    lanes = Lanes(counts, num_lanes, None)
    order = np.concatenate([lanes.part(p) for p in range(lanes.num_parts)])
    rows = [sum(counts[f] for f in files) for files in lanes.files]
    assert np.bincount(order).tolist() == rows
    assert sorted(f for files in lanes.files for f in files) == [
        file for file, count in enumerate(counts) if count
    ]
    for row in (0, len(order) // 5, len(order) // 3, len(order) - 1):
        part, place, done = lanes.at(row)
        assert np.array_equal(
            done, np.bincount(order[:row], minlength=len(rows))
        )
        assert lanes.part(part)[place] == order[row]
        expected = np.array(rows) * row / len(order)
        assert np.abs(done - expected).max() < 1 + len(rows) / 2


def test_lanes_are_about_equally_long() -> None:
    counts = (np.arange(200) * 7919 % 1000 + 500).tolist()
    rows = [
        sum(counts[f] for f in files) for files in Lanes(counts, 8, 1).files
    ]
    assert max(rows) - min(rows) < 600  # 500 is the shortest file


def test_the_rows_of_each_lane_are_evenly_apart() -> None:
    lanes = Lanes([1, 3], 2, None)
    assert lanes.files == [[1], [0]]
    assert lanes.part(0).tolist() == [0, 0, 1, 0]


def test_what_is_left_of_a_lane() -> None:
    lanes = Lanes([3, 4, 5, 6], 1, None)
    files, before = lanes.left_of(0, np.array([0, 0]), 7)
    order = lanes.files[0]
    ends = np.cumsum(np.array([3, 4, 5, 6])[order])
    assert files.tolist() == [
        f for f, e in zip(order, ends, strict=True) if e > 7
    ]
    assert before[0] == 7 - ([0, *ends][len(order) - len(files)])
    assert not before[1:].any()
    files, before = lanes.left_of(0, np.array([0, 0]), 6)  # a whole file
    assert (files.tolist(), before.tolist()) == ([2, 1, 0], [0, 0, 0])
    shuffled = Lanes([3, 4, 5, 6], 1, 9)
    orders = {
        tuple(shuffled.left_of(0, np.array([epoch, 0]), 0)[0])
        for epoch in range(20)
    }
    assert len(orders) > 10
