"""States of training loops of one's own: whose state all ranks take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import hvd_keras as hvd


def object_state(rank: int) -> Any:
    return hvd.elastic.ObjectState(step=100 + rank)


def variable_state(rank: int) -> Any:
    return hvd.elastic.TensorFlowState(
        [tf.Variable([float(rank)] * 3)], step=100 + rank
    )


class OwnState(hvd.elastic.State):
    """What a user may write."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.step = 100 + rank

    def save(self) -> None:
        pass

    def sync(self) -> None:
        self.step = hvd.broadcast_object(self.step, self.root_rank)


@pytest.fixture(params=[object_state, variable_state, OwnState])
def state(request: pytest.FixtureRequest, rank: int) -> Any:
    make: Callable[[int], Any] = request.param
    return make(rank)


@hvd.elastic.run
def begin(state: Any) -> int:
    """Returns the step with which the ranks begin."""
    if variables := getattr(state, "variables", None):
        values = np.unique(np.stack([each.numpy() for each in variables]))
        assert values.tolist() == [state.step - 100]
    return int(state.step)


def test_all_begin_with_the_state_of_rank_zero(state: Any) -> None:
    assert begin(state) == 100


def test_a_rank_zero_that_came_later_takes_the_state_of_the_others(
    state: Any, rank: int, size: int
) -> None:
    if rank > 0:
        state.commit()
    assert begin(state) == 100 + min(1, size - 1)


def test_the_rank_that_got_farthest_has_the_state(
    state: Any, rank: int, size: int
) -> None:
    """The others were lost before they had the last commits."""
    for _ in range(1 + rank):
        state.commit()
    assert begin(state) == 100 + size - 1


def test_ranks_that_have_synced_have_the_newest_state(
    state: Any, rank: int, size: int
) -> None:
    begin(state)
    state.step = 100 + rank
    if rank == 0:
        state._hvd_num_saved = 0  # as in a process that was just started
    if isinstance(state, hvd.elastic.TensorFlowState):
        state.variables[0].assign([float(rank)] * 3)
    assert begin(state) == 100 + min(1, size - 1)
