"""Ranks that read data in unequal orders are told, on JAX and torch."""

from __future__ import annotations

import order_cases
import pytest

import hvd_keras as hvd  # noqa: F401

needs_peers = pytest.mark.skipif("hvd.size() == 1", reason="needs 2 ranks")
thorough = pytest.mark.thorough
WAYS = [
    ("init", "numbers", 1),
    ("end", "numbers", 1),
    ("end", "names", 1),
    pytest.param("init", "rows", 1, marks=thorough),
    pytest.param("end", "rows", 2, marks=thorough),
]


@needs_peers
@pytest.mark.parametrize(("when", "what", "workers"), WAYS)
def test_unequal_shuffles_of_a_py_dataset_are_told(when, what, workers) -> None:
    order_cases.check_unequal_shuffles_are_told(when, what, workers)


@pytest.mark.parametrize(("when", "what", "workers"), WAYS)
def test_equal_shuffles_of_a_py_dataset_pass(when, what, workers) -> None:
    order_cases.check_equal_shuffles_pass(when, what, workers)


@needs_peers
@pytest.mark.parametrize(
    "where", ["global", "class", "closure", "lazy", "draw"]
)
def test_orders_outside_of_attributes_are_told(where: str) -> None:
    order_cases.check_orders_elsewhere_are_told(where)


@pytest.mark.parametrize("where", ["global", "class", "closure", "draw"])
def test_equal_orders_outside_of_attributes_pass(where: str) -> None:
    order_cases.check_equal_orders_elsewhere_pass(where)


def test_caches_of_batches_are_no_orders() -> None:
    order_cases.check_caches_of_batches_are_no_orders()


@needs_peers
def test_equal_draws_of_rows_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from hvd_keras._common import log

    lines: list[str] = []
    monkeypatch.setattr(log, "warning", lines.append)
    order_cases.check_equal_draws_are_told(lines)


@needs_peers
def test_evaluate_alone_is_compared() -> None:
    order_cases.check_evaluate_alone_is_compared()


@needs_peers
def test_validation_is_compared() -> None:
    order_cases.check_validation_is_compared()


def test_fit_does_not_shuffle_batches() -> None:
    order_cases.check_fit_does_not_shuffle()


def test_a_look_at_the_data_changes_nothing() -> None:
    order_cases.check_a_look_changes_nothing()


def test_a_new_process_goes_on_with_the_orders() -> None:
    order_cases.check_a_new_process_goes_on_with_the_orders()
