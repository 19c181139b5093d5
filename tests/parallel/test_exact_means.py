"""Losses with unequal counts train as on one process."""

from __future__ import annotations

import pytest
from equality import cases
from equality.check import assert_equals_one_process
from selection import thorough_except


@pytest.mark.thorough(1, 3, 4)
@pytest.mark.parametrize(
    "name",
    thorough_except(
        ["rest", "mask_pad", "sum_op", "mask_xla"],
        *("mask_pad", "sum_op"),
    ),
)
def test_training_equals_one_process(name: str) -> None:
    assert_equals_one_process(cases.LOSSES[name])


@pytest.mark.thorough(1, 3, 4)
def test_rows_that_fill_a_batch_do_not_count_in_statistics() -> None:
    assert_equals_one_process(cases.MODELS["sync_batch_norm_pad"])
