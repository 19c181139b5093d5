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
