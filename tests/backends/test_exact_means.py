"""Losses with unequal counts train as on one process."""

from __future__ import annotations

import mean_cases
import pytest
from selection import thorough_except

# JAX compiles the others, too.
CASES = [name for name in mean_cases.CASES if not name.endswith("xla")]


@pytest.mark.parametrize(
    "name", thorough_except(CASES, "mask_pad", "mean_with_weights", "sum_op")
)
def test_training_equals_one_process(name: str) -> None:
    mean_cases.assert_equals_one_process(mean_cases.CASES[name])
