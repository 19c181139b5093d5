"""The hosts that the tests share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from network import Network


@pytest.fixture(scope="session")
def network() -> Iterator[Network]:
    with tempfile.TemporaryDirectory(prefix="hvd-hosts-") as folder:
        made = Network(Path(folder))
        try:
            made.start_sshd()
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def three_hosts() -> Iterator[Network]:
    with tempfile.TemporaryDirectory(prefix="hvd-hosts-") as folder:
        made = Network(Path(folder), 3)
        yield made
        made.close()


@pytest.fixture
def secret(tmp_path: Path) -> str:
    """The path of a file with a job's secret."""
    path = tmp_path / "secret"
    path.write_text("5a" * 32)
    path.chmod(0o600)
    return str(path)
