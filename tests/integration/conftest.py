"""Fixtures of the tests that start jobs and servers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from bootstrap_server import SIZE, Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path, SIZE) as found:
        yield found


@pytest.fixture
def served_pair(tmp_path: Path) -> Iterator[Served]:
    """Serves a job of two ranks."""
    with serving(tmp_path, 2) as found:
        yield found


@contextlib.contextmanager
def serving(tmp_path: Path | None, size: int) -> Iterator[Served]:
    """Serves at a Unix socket in a directory; None: at a TCP port."""
    if tmp_path is None:
        found = Served("", size)
        yield found
        found.close()
        return
    # The path of a socket must be short.
    directory = tmp_path if len(str(tmp_path)) < 80 else Path("/tmp")
    path = directory / f"server.{os.getpid()}"
    found = Served(str(path), size)
    yield found
    found.close()
    path.unlink()
