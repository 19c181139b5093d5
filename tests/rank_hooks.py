"""Hooks and fixtures of all tests that run on every rank of a job.

Each rank runs the same tests in the same order. The ranks meet after each
test, so that one failed test does not hang the next. If a test hangs, the job
ends and prints the stacks of all ranks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import faulthandler
import json
import os
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hvd_keras as hvd
from hvd_keras import _native
from hvd_keras._job import state

DEADLINE_SECONDS = 240  # several stalls: ranks wait for a failed peer
# The suites want one file of results a rank here.
REPORT_DIR = os.environ.get("PARALLEL_REPORT_DIR")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "deadline(seconds): how long the test may take"
    )
    config.addinivalue_line(
        "markers", "ranks(*numbers): the only numbers of ranks it runs on"
    )
    # pytest captures file descriptor 2 while a test runs.
    stderr = os.dup(2)
    config.stash[STDERR] = stderr
    # The launcher ends the other ranks with SIGTERM; their stacks say where
    # they were.
    faulthandler.register(signal.SIGTERM, file=stderr, chain=True)
    hvd.init()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker in item.iter_markers("ranks"):
            if hvd.size() not in marker.args:
                reason = f"on {marker.args} ranks only"
                item.add_marker(pytest.mark.skip(reason=reason))


STDERR = pytest.StashKey[int]()


def pytest_unconfigure(config: pytest.Config) -> None:
    faulthandler.unregister(signal.SIGTERM)


@pytest.fixture
def bucket_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes optimizers put each gradient into a bucket of its own."""
    settings = dataclasses.replace(state.config(), bucket_bytes=1)
    monkeypatch.setattr(state, "config", lambda: settings)


@pytest.fixture(autouse=True)
def _deadline(request: pytest.FixtureRequest) -> Iterator[None]:
    marker = request.node.get_closest_marker("deadline")
    seconds = marker.args[0] if marker else DEADLINE_SECONDS
    faulthandler.dump_traceback_later(
        seconds, exit=True, file=request.config.stash[STDERR]
    )
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _ranks_meet(request: pytest.FixtureRequest, _deadline: None) -> Iterator:
    yield
    # A rank that failed comes here early. The others still wait for it in the
    # test until they stall, so it waits for several stalls.
    for _ in range(3):
        with contextlib.suppress(hvd.StalledError):
            name = f"after {request.node.nodeid}"
            _native.core().allreduce(name, [np.zeros(1)], int(hvd.Sum))
            return
    pytest.exit(f"The ranks did not meet after {request.node.nodeid}", 1)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if REPORT_DIR is None or (report.when != "call" and report.passed):
        return
    entry = _entry(report.fspath, report.nodeid, report.outcome)
    entry["text"] = report.longreprtext if report.failed else ""
    entry["seconds"] = report.duration
    _append_report(entry)


def pytest_deselected(items: list[pytest.Item]) -> None:
    for item in items:
        if REPORT_DIR is not None:
            _append_report(_entry(item.path, item.nodeid, "deselected"))


def pytest_sessionfinish() -> None:
    if REPORT_DIR is not None:
        _append_report({"outcome": "finished"})


def _entry(
    path: str | pathlib.Path, node_id: str, outcome: str
) -> dict[str, Any]:
    return {
        "file": pathlib.Path(path).name,
        "test": node_id.split("::", 1)[-1],
        "outcome": outcome,
    }


def _append_report(entry: dict[str, Any]) -> None:
    # The launcher's variable: a test may have ended its job.
    rank = os.environ.get("HVD_RANK", "0")
    path = pathlib.Path(REPORT_DIR or "") / f"rank_{rank}.jsonl"
    with path.open("a") as file:
        file.write(json.dumps(entry) + "\n")


@pytest.fixture
def rank() -> int:
    return hvd.rank()


@pytest.fixture
def size() -> int:
    return hvd.size()
