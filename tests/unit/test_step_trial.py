"""What a trial of a step finds in gradients."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_keras.distribution import _step_trial

ONE = np.ones(3)
ZERO = np.zeros(3)


@pytest.mark.parametrize(
    ("alone", "changed", "means", "expected"),
    [
        (ONE, ONE, ONE, True),
        (ONE, ONE, ONE * 1.5, False),
        (ONE, ONE * 2.0, ONE * 1.5, None),  # draws, or is ill-conditioned
        (ONE * np.nan, ONE, ONE, None),
        (ONE, ONE, ONE * np.inf, None),
        (ZERO, ZERO, ZERO, None),
        (ZERO, ZERO, ONE, False),
    ],
)
def test_gradients_agree_only_where_that_is_known(
    alone: np.ndarray,
    changed: np.ndarray,
    means: np.ndarray,
    expected: bool | None,
) -> None:
    assert _step_trial._agree([alone], [changed], [means]) is expected


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ([True, True], True),
        ([True, None], None),
        ([None, False], False),
        ([], None),
    ],
)
def test_one_difference_is_enough(
    verdicts: list[bool | None], expected: bool | None
) -> None:
    assert _step_trial._all(verdicts) is expected
