"""Losses with unequal counts train as on one process."""

from __future__ import annotations

import mean_cases
import pytest
from selection import thorough_except


@pytest.mark.thorough(1, 3, 4)
@pytest.mark.parametrize(
    "name",
    thorough_except(
        mean_cases.CASES,
        "rest",
        "fewer_rows_than_ranks",
        "mask_pad",
        "two_masks",
        "mean_with_weights",
        "sum_op",
        "mask_xla",
    ),
)
def test_training_equals_one_process(name: str) -> None:
    mean_cases.assert_equals_one_process(mean_cases.CASES[name])
