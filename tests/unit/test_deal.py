"""NumPy and TensorFlow graphs choose the same rows of global batches."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_keras._common.error_text import error_in
from hvd_keras.data._arrays import own_rows
from hvd_keras.data._deal import POLICIES, Deal
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


def test_our_errors_are_found_in_messages_of_xla() -> None:
    text = "UNKNOWN: hvd_keras.exceptions.PeerLostError: rank 1 died"
    error = error_in(text)
    assert isinstance(error, PeerLostError)
    assert str(error) == "rank 1 died"
    assert error_in("UNKNOWN: something else") is None
