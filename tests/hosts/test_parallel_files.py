"""The tests of tests/parallel, on 2 ranks of each of two hosts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from network import Network, finish

PARALLEL = Path(__file__).parents[1] / "parallel"
QUICK = {"test_mismatch.py", "test_process_sets.py", "test_keras_equality.py"}
FILES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough)
    for name in sorted(path.name for path in PARALLEL.glob("test_*.py"))
]


@pytest.mark.parametrize("file", FILES)
def test_passes_on_two_hosts(network: Network, file: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p"]
    command += ["no:cacheprovider", str(PARALLEL / file)]
    job = network.hvdrun(0, "-H", "hosta:2,hostb:2", "--", *command)
    status, stdout, stderr = finish(job, 600)
    assert status == 0, stdout[-10_000:] + stderr[-10_000:]
