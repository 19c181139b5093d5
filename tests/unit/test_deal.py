"""NumPy and TensorFlow graphs choose the same rows of global batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hvd_keras._common.error_text import error_in
from hvd_keras.data._arrays import own_rows
from hvd_keras.data._deal import POLICIES, Deal
from hvd_keras.data._pass import Pass, order_of
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
            fewest = deal.batch_size if policy in ("pad", "drop") else 0
            assert places[step] == max(real[step], fewest, policy == "split")
            steps.setdefault(step, []).extend(own[: real[step]])
    used = num_rows // 7 * 7 if policy == "drop" else num_rows
    expected = np.split(np.arange(first, first + used), range(7, used, 7))
    assert [np.array(own).tolist() for own in steps.values()] == [
        each.tolist() for each in expected
    ]


@pytest.mark.parametrize("has_weights", [True, False])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("num_rows", [0, 10, 11, 13, 15, 19, 20, 28])
def test_what_a_deal_foretells_comes_true(
    policy: str, num_rows: int, has_weights: bool
) -> None:
    deals = [Deal(rank, 5, 2, policy, has_weights) for rank in range(5)]
    part = Pass(0, 0, deals[0], num_rows)
    steps = [part.bounds(step) for step in range(part.num_global_steps or 0)]
    sizes = [end - begin for begin, end in steps]
    assert sum(sizes) == (num_rows // 10 * 10 if policy == "drop" else num_rows)
    weights = [[deal.own_rows(size)[1] for deal in deals] for size in sizes]
    for size, batches in zip(sizes, weights, strict=True):
        assert deals[0].counts(size) == [
            ((own > 0.0).sum(), (own <= 0.0).sum()) for own in batches
        ]
    batches = [own for step in weights for own in step]
    is_filled = any((own <= 0.0).any() for own in batches)
    assert deals[0].may_fill(num_rows) == (is_filled and has_weights)
    assert deals[0].is_static(num_rows) == all(len(own) == 2 for own in batches)
    for rank, deal in enumerate(deals):
        own = [len(step[rank]) for step in weights if len(step[rank])]
        assert deal.num_steps(num_rows) == len(own)


@pytest.mark.parametrize(
    ("num_rows", "sizes"), [(6, [6]), (8, [8]), (9, [6, 3]), (13, [6, 7])]
)
def test_fewer_rows_than_ranks_join_the_step_before(
    num_rows: int, sizes: list[int]
) -> None:
    deal = Deal(0, 3, 2, "split", has_weights=False)
    part = Pass(2, 5, deal, num_rows + 5)
    steps = [part.bounds(step) for step in range(part.num_global_steps or 0)]
    assert [end - begin for begin, end in steps] == sizes
    assert (steps[0][0], steps[-1][1]) == (5, num_rows + 5)
    rest = sizes[-1] % 6 if sizes[-1] <= 6 else None
    assert deal.rest_of(num_rows) == (None if num_rows == 8 else rest)
    assert deal.num_joined(num_rows) == (num_rows % 6) * (sizes[-1] > 6)
    assert deal.num_joined(None) == 0


KEEPING = {"keeps_batches": True, "num_global": 1}


# What is said of: whether there may be filling, whether all batches are
# equally large, and how many rows the last step has that is not full.
@pytest.mark.parametrize(
    ("options", "num_rows", "expected"),
    [
        ({}, None, (True, False, None)),
        ({}, 14, (True, False, 2)),
        ({"size": 1}, None, (False, False, None)),
        ({"size": 1}, 13, (False, False, 1)),
        ({"has_weights": False}, None, (False, False, None)),
        ({"policy": "pad"}, None, (True, True, None)),
        ({"policy": "drop"}, None, (False, True, 0)),
        ({"policy": "drop"}, 14, (False, True, 0)),
        ({"policy": "join"}, 14, (False, False, None)),
        ({"is_elastic": True}, 12, (True, False, None)),
        ({"is_elastic": True, "policy": "pad"}, 12, (True, True, None)),
        ({"is_elastic": True, "policy": "join"}, 12, (False, False, None)),
        ({"is_uneven": True}, 12, (True, False, None)),
        ({"is_uneven": True, "size": 2}, 12, (True, False, None)),
        ({"is_uneven": True, "size": 1}, 12, (False, False, None)),
        (
            {"is_uneven": True, "size": 1, "is_elastic": True},
            12,
            (True, False, None),
        ),
        (KEEPING, 12, (True, False, 0)),
        (
            {**KEEPING, "size": 2},
            12,
            (True, False, 0),
        ),
        (
            {**KEEPING, "size": 1},
            12,
            (False, False, 0),
        ),
    ],
)
def test_batches_of_any_deal_are_foretold(
    options: dict[str, Any], num_rows: int | None, expected: tuple[Any, ...]
) -> None:
    given = {"size": 3, "batch_size": 2, "policy": "split", **options}
    deal = Deal(rank=0, **given)
    told = deal.may_fill(num_rows), deal.is_static(num_rows)
    assert (*told, deal.rest_of(num_rows)) == expected


@pytest.mark.parametrize(("rows", "size"), [(6, 3), (3, 3), (1, 1)])
def test_a_global_batch_that_ranks_share_evenly(rows: int, size: int) -> None:
    deal = Deal.of_global(rows, rank=0, size=size, policy="split")
    assert deal == Deal(0, size, rows // size, "split")


def test_an_epoch_without_rows_has_no_steps() -> None:
    for num_all in (0, 2, None):  # 2 rows have no step that they could join
        deal = Deal(0, 3, 2, "split", has_weights=False)
        part = Pass(0, 0, deal, num_all)
        rows, places, real = rows_of_steps(np.arange(0), part)
        assert (len(rows), len(places), len(real)) == (0, 0, 0)
    assert part.bounds(0) == (0, 6)  # of many rows, as far as is known


def test_an_order_depends_on_its_epoch_and_seed_alone() -> None:
    assert order_of(9, 1, shuffle=False, seed=5) is None
    orders = [
        order_of(9, epoch, shuffle=True, seed=seed)
        for epoch, seed in ((1, 5), (1, 5), (2, 5), (1, 6))
    ]
    assert np.array_equal(np.sort(orders), [np.arange(9)] * 4)
    assert np.array_equal(orders[0], orders[1])
    assert not (np.array(orders[1:]) == orders[0]).all(1)[1:].any()


def test_a_global_batch_has_a_row_for_each_rank() -> None:
    with pytest.raises(ValueError, match="2 rows for 3 ranks"):
        Deal.of_global(2, rank=0, size=3, policy="split")
    with pytest.raises(ValueError, match="2 rows for 3 ranks"):
        Deal.of_global(2, rank=0, size=3, policy="pad", can_be_few=True)


@pytest.mark.parametrize("rows", [1, 2])
def test_ranks_may_have_filling_alone_in_each_step(rows: int) -> None:
    num_rows, found = 5, []
    for rank in range(3):
        deal = Deal.of_global(
            rows, rank=rank, size=3, policy="split", can_be_few=True
        )
        assert deal.may_fill(num_rows)
        part = Pass(0, 0, deal, num_rows)
        own, places, real = rows_of_steps(np.arange(num_rows), part)
        assert len(places) == -(-num_rows // rows)
        assert (places == 1).all()
        found += [line[:n] for line, n in zip(own, real, strict=True)]
    assert sorted(np.concatenate(found)) == [*range(num_rows)]


def test_our_errors_are_found_in_messages_of_xla() -> None:
    text = "UNKNOWN: hvd_keras.exceptions.PeerLostError: rank 1 died"
    error = error_in(text)
    assert isinstance(error, PeerLostError)
    assert str(error) == "rank 1 died"
    assert error_in("UNKNOWN: something else") is None
