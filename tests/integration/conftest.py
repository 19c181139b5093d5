"""Fixtures of the tests that start jobs and servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from rendezvous_server import SIZE, Served, serving


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, SIZE) as found:
        yield found


@pytest.fixture
def served_pair(tmp_path: Path) -> Iterator[Served]:
    """Serves a job of two ranks."""
    with serving(tmp_path, 2) as found:
        yield found
