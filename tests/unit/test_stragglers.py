"""When a rank counts as one that the others wait for."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_keras.elastic._stragglers import find

MS = 1_000_000


def _ranks(*rows: tuple[int, float]) -> np.ndarray:
    return np.array([(times, ms * MS) for times, ms in rows], np.int64)


def _find(ranks: np.ndarray, waited: float, **kw: float) -> Any:
    values: dict[str, Any] = {
        "num_steps": 100, "seconds": 9.0, "factor": 1.5, **kw
    }  # fmt: skip
    return find(ranks, waited=waited, **values)


def test_the_rank_that_is_waited_for_is_found() -> None:
    # 100 steps of 90 ms; rank 1 is 40 ms late to two calls of each.
    ranks = _ranks((100, 100), (200, 200 * 40), (0, 0))
    assert _find(ranks, waited=4.0) == (
        1,
        "was waited for 40 ms of a step of 90 ms, in the mean of the last 9 s; "
        "that is 99% of all waiting",
    )


def test_rank_0_may_be_late_itself() -> None:
    found = _find(_ranks((100, 100 * 40), (0, 0)), waited=0.0)
    assert found is not None
    assert found[0] == 0


def test_a_factor_that_is_not_reached() -> None:
    ranks = _ranks((100, 100), (200, 200 * 20), (0, 0))  # 90 / 70
    assert _find(ranks, waited=2.0) is None


def test_ranks_that_take_turns() -> None:
    ranks = _ranks((100, 100 * 40), (100, 100 * 40))
    assert _find(ranks, waited=4.0) is None


def test_few_steps_tell_nothing() -> None:
    assert _find(_ranks((0, 0), (10, 5000)), waited=5.0, num_steps=5) is None
    assert _find(_ranks((0, 0), (0, 0)), waited=0.0) is None
