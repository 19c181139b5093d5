"""NumPy and TensorFlow graphs choose the same rows of global batches."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_keras._common.error_text import error_in
from hvd_keras.data._arrays import own_rows
from hvd_keras.data._deal import POLICIES, Deal
from hvd_keras.data._pass import Pass
from hvd_keras.data._pass import own_rows as rows_of_steps
from hvd_keras.exceptions import PeerLostError


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_rows", [1, 5, 6, 9])
def test_numpy_and_graph_choose_the_same_rows(
    policy: str, num_rows: int
) -> None:
    seen = []
    for rank in range(3):
        deal = Deal(rank=rank, size=3, batch_size=3, policy=policy)
        rows, weights = deal.own_rows(num_rows)
        in_graph, weights_in_graph = own_rows(deal, num_rows)
        np.testing.assert_array_equal(rows, in_graph)
        np.testing.assert_array_equal(weights, weights_in_graph)
        seen += rows[weights > 0.0].tolist()
    assert seen == list(range(num_rows))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_rows", [7, 20, 21, 29])
@pytest.mark.parametrize("first", [0, 7])
def test_ranks_share_a_global_batch_unevenly(
    policy: str, num_rows: int, first: int
) -> None:
    steps: dict[int, list[int]] = {}
    for rank in range(3):
        deal = Deal.of_global(7, rank=rank, size=3, policy=policy)
        part = Pass(0, first, deal, num_rows + first)
        rows, places, real = rows_of_steps(np.arange(num_rows + first), part)
        for step, own in enumerate(rows):
            assert places[step] <= deal.batch_size
            if policy in ("pad", "drop"):
                assert places[step] == deal.batch_size
            steps.setdefault(step, []).extend(own[: real[step]])
    used = num_rows // 7 * 7 if policy == "drop" else num_rows
    expected = np.split(np.arange(first, first + used), range(7, used, 7))
    assert [np.array(own).tolist() for own in steps.values()] == [
        each.tolist() for each in expected
    ]


def test_a_global_batch_has_a_row_for_each_rank() -> None:
    with pytest.raises(ValueError, match="2 rows for 3 ranks"):
        Deal.of_global(2, rank=0, size=3, policy="split")


def test_our_errors_are_found_in_messages_of_xla() -> None:
    text = "UNKNOWN: hvd_keras.exceptions.PeerLostError: rank 1 died"
    error = error_in(text)
    assert isinstance(error, PeerLostError)
    assert str(error) == "rank 1 died"
    assert error_in("UNKNOWN: something else") is None
