"""Fixtures of the tests that start jobs and servers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from bootstrap_server import Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    # Names of sockets must be short.
    directory = tmp_path if len(str(tmp_path)) < 80 else Path("/tmp")
    path = directory / f"server.{os.getpid()}"
    found = Served(str(path))
    yield found
    found.close()
    path.unlink()
