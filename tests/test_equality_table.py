"""Cases of the equality table, on ranks of each backend."""

from __future__ import annotations

import importlib.util

import pytest
from equality import cases, table, versions


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("backend", "num_ranks"), [("tensorflow", 3), ("jax", 2), ("torch", 2)]
)
def test_cases_equal_one_process(backend: str, num_ranks: int) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    # Compilers are slow. tests/parallel and tests/backends have more cases, and
    # `make equality-table` has all.
    names = [
        name
        for name in cases.of_backend(backend)
        if name in cases.LOSSES and "xla" not in name
    ]
    entries = table.measure(backend, num_ranks, "ours", *names)
    assert [entry for entry in entries if "error" in entry] == []
    assert all(entry["equal_ranks"] for entry in entries)
    differing = [
        entry
        for entry in entries
        if table.cell(entry) != "="
        and not getattr(cases.ALL[entry["case"]], "why_not_equal", "")
    ]
    assert differing == []


def test_the_page_has_a_row_for_each_case() -> None:
    titles = {cases.TITLES[name] for name in cases.ALL}
    assert len(titles) == len(cases.ALL)
    page = table.PAGE.read_text()
    assert [title for title in titles if f"| {title} |" not in page] == []


def test_a_column_of_versions_replaces_the_one_of_its_kind() -> None:
    page = f"a\n{versions.BEGIN}\n\n{versions.END}\nb\n"
    for title, result in [
        ("Keras 3.15.1", "2 of 3"),
        ("Keras's main branch (3.16.0, 1)", "3 of 3"),
        ("Keras's main branch (3.17.0, 2)", "1 of 3; rest: error"),
    ]:
        page = versions.with_column(page, title, {"torch 2": result})
    page = versions.with_column(page, "Keras 3.15.1", {"JAX 1": "3 of 3"})
    assert versions.read(page) == {
        "JAX 1": {
            "Keras's main branch (3.17.0, 2)": "",
            "Keras 3.15.1": "3 of 3",
        },
        "torch 2": {
            "Keras's main branch (3.17.0, 2)": "1 of 3; rest: error",
            "Keras 3.15.1": "2 of 3",
        },
    }
    assert page.startswith("a\n")
    assert page.endswith("\nb\n")


def test_the_cases_that_differ_are_named() -> None:
    entries = [
        {"case": "rest", "difference": 0.0},
        {"case": "adam", "difference": 0.02},
        {"case": "sum", "error": "x"},
    ]
    assert versions.summary(entries) == (
        '1 of 3; Adam: 0.02; `reduction="sum"`, regularizer: error'
    )
