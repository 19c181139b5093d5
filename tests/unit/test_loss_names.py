"""Losses have the same names on ranks of which one step has failed."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras._job import state


def test_losses_of_a_failed_step_do_not_count_with_other_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optimizer: Any = hvd.DistributedOptimizer("sgd")
    monkeypatch.setattr(state, "generation", lambda: 1)
    assert [optimizer.hvd_next_loss() for _ in range(2)] == [0, 1]
    monkeypatch.setattr(state, "generation", lambda: 2)
    assert [optimizer.hvd_next_loss() for _ in range(2)] == [0, 1]


@pytest.mark.usefixtures("_job")
def test_updates_begin_anew() -> None:
    variable = keras.Variable(np.ones(2))
    optimizer: Any = hvd.DistributedOptimizer("sgd")
    optimizer.build([variable])
    assert [optimizer.hvd_next_loss() for _ in range(2)] == [0, 1]
    optimizer.apply([np.ones(2)], [variable])
    assert optimizer.hvd_next_loss() == 0
