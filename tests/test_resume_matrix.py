"""Killed runs go on with other numbers of ranks, each row once an epoch."""

from __future__ import annotations

import pytest
from resume import loaders, table


@pytest.mark.nightly
def test_each_loader_resumes_on_other_ranks() -> None:
    problems = table.measure([(1, 2), (2, 4), (4, 1)])
    assert {key: found for key, found in problems.items() if found} == {}


def test_the_page_has_a_row_for_each_loader() -> None:
    page = table.PAGE.read_text()
    assert [name for name in loaders.ALL if f"| {name} |" not in page] == []
