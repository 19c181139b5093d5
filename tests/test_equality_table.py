"""Cases of the equality table, on ranks of each backend."""

from __future__ import annotations

import importlib.util

import pytest
from equality import cases, table


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
