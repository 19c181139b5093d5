"""Runs the tests in two processes at once: `pytest -n 2 --dist loadgroup`.

One process takes from the front, where the suites are that compute; the other
one from the end, where tests mostly wait. A unit is a file, or what has the
same mark `xdist_group`. Tests that are marked `timed` come last, and nothing
runs beside them: they assert seconds.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import xdist
from xdist.scheduler import LoadGroupScheduling

_TIMED = "timed"


class Schedule(LoadGroupScheduling):
    """Gives units to one worker from the front, to the others from the end."""

    def _split_scope(self, nodeid: str) -> str:
        group = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if group == nodeid else group

    def _assign_work_unit(self, node: Any) -> None:
        units = [unit for unit in self.workqueue if unit != _TIMED]
        unit = (units or [_TIMED])[0 if node is self.nodes[0] else -1]
        self.workqueue.move_to_end(unit, last=False)
        super()._assign_work_unit(node)


class Controller:
    """Hooks of the process that starts the workers."""

    @pytest.hookimpl
    def pytest_xdist_make_scheduler(
        self, config: pytest.Config, log: Any
    ) -> Schedule:
        return Schedule(config, log)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Takes the group out of the name, for which pytest knows no test."""
        name, at, group = report.nodeid.rpartition("@")
        if at and "]" not in group:
            report.nodeid = name


class Worker:
    """Hooks of one of the workers."""

    def __init__(self, shared: Path) -> None:
        self._lock = shared / "lock"

    @pytest.hookimpl(tryfirst=True)  # before xdist asks for the groups
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        here = Path(__file__).parent
        items.sort(key=lambda item: item.path.parent != here)  # suites first
        for item in items:
            if item.get_closest_marker(_TIMED):
                item.add_marker(pytest.mark.xdist_group(_TIMED))

    @pytest.hookimpl
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            has_group = item.get_closest_marker("xdist_group") is not None
            if has_group and "@" not in item.nodeid.rpartition("]")[2]:
                raise RuntimeError(
                    f"pytest {pytest.__version__} and pytest-xdist "
                    f"{xdist.__version__} lose the groups of tests. Install "
                    "what pyproject.toml says."
                )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item
    ) -> Iterator[None]:  # of a generator
        is_timed = item.get_closest_marker(_TIMED) is not None
        with self._lock.open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX if is_timed else fcntl.LOCK_SH)
            return (yield)


def register(config: pytest.Config) -> None:
    """Adds the hooks of a worker, or those of the process that starts them."""
    if hasattr(config, "workerinput"):
        for name in ("COLUMNS", "LINES"):  # pytest's readline has set them
            os.environ.pop(name, None)
        shared = Path(config.getoption("basetemp")).parent
        config.pluginmanager.register(Worker(shared))
    else:
        config.pluginmanager.register(Controller())
