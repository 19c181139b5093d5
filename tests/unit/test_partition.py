"""Which side of a network that has come apart may go on."""

from __future__ import annotations

import itertools

import pytest

from hvd_keras._job.hosts.partition import may_go_on


@pytest.mark.parametrize(
    ("lost", "size", "expected"),
    [
        ([], 1, True),
        ([4, 5], 6, True),
        ([0, 1], 6, True),
        ([0, 1, 2, 3], 6, False),
        ([2, 3], 4, True),  # a tie: with rank 0
        ([0, 1], 4, False),
        ([0], 2, False),
    ],
)
def test_the_majority_may_go_on(
    lost: list[int], size: int, expected: bool
) -> None:
    assert may_go_on(lost, size) is expected


def test_at_most_one_side_may() -> None:
    for size in range(1, 7):
        for sides in itertools.product([0, 1], repeat=size):
            lost = [
                [rank for rank in range(size) if sides[rank] != side]
                for side in (0, 1)
            ]
            assert sum(may_go_on(one, size) for one in lost) == 1, sides
