"""Decides which tests run where; says what was left out."""

from __future__ import annotations

import gc
import os
import pathlib
import re
import signal
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import pytest

# These run in jobs, which test_parallel_suite.py, test_gpu_suite.py and
# test_backend_suite.py start; the last of them sets KERAS_BACKEND.
OF_RANKS = [
    pathlib.Path(__file__).parent / name
    for name in ("parallel", "gpu", "backends")
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough",
        action="store_true",
        help="run the tests marked `thorough` too",
    )


def _hear_signals() -> None:
    """Undoes what a shell does to commands in the background, or `nohup`.

    What a process ignores its children ignore too. Tests send these signals to
    theirs.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def pytest_configure(config: pytest.Config) -> None:
    _hear_signals()
    # Images of containers set it. Each rank would compile the package anew: a
    # tenth of the seconds in which it starts.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    config.addinivalue_line(
        "markers",
        "thorough(*numbers): runs only with --thorough, on these numbers of "
        "ranks or on any",
    )
    config.addinivalue_line(
        "markers", "nightly: runs only with NIGHTLY=1 in the environment"
    )
    config.addinivalue_line(
        "markers", "timed: asserts seconds, so nothing runs beside it"
    )
    if config.getoption("dist", "no") == "loadgroup" or is_worker(config):
        import schedule

        schedule.register(config)


def pytest_collection_finish() -> None:
    """Has Python look for garbage more rarely.

    What is imported stays, and what TensorFlow traces stays for long. To look
    through all of it was a quarter of the processor's time of ranks.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def is_worker(config: pytest.Config) -> bool:
    """Returns whether this is one of the processes that xdist has started."""
    return hasattr(config, "workerinput")


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leaves out tests that are slow and say little more than the rest.

    What holds on 2 and 3 ranks rarely fails on 4. On 1 rank one set of options
    is enough where other tests take the same path.
    """
    left_out = [item for item in items if _is_nightly(item)]
    if not config.getoption("thorough"):
        left_out += [item for item in items if _is_thorough(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _is_nightly(item: pytest.Item) -> bool:
    is_night = os.environ.get("NIGHTLY") == "1"
    return not is_night and any(item.iter_markers("nightly"))


def _is_thorough(item: pytest.Item) -> bool:
    # A job on several hosts names those whose tests it wants.
    numbers = os.environ.get("SELECT_AS_RANKS", os.environ.get("HVD_SIZE", "1"))
    markers = list(item.iter_markers("thorough"))
    return all(
        any(not marker.args or number in marker.args for marker in markers)
        for number in map(int, numbers.split(","))
    )


COUNTS = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def note_job(pytestconfig: pytest.Config) -> Callable[[str, Any], None]:
    """Takes a job's title and a job; its counts are printed at the end.

    With `--durations=N` its N slowest tests are printed, too.
    """
    lines = pytestconfig.stash.setdefault(COUNTS, [])

    def note(title: str, job: Any) -> None:
        lines.append(f"{title}: {job.counts()}")
        lines.extend(job.slowest(pytestconfig.option.durations or 0))

    return note


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes what a worker of xdist has noted of its jobs."""
    noted = getattr(node, "workeroutput", {}).get("counts", [])
    node.config.stash.setdefault(COUNTS, []).extend(noted)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if is_worker(session.config):
        counts = session.config.stash.get(COUNTS, [])
        session.config.workeroutput["counts"] = counts


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    lines = config.stash.get(COUNTS, [])
    if lines:
        terminalreporter.section("tests in jobs of ranks")
    for line in lines:
        terminalreporter.write_line(line)
    yield
    reasons = [
        _reason_of(report) for report in terminalreporter.getreports("skipped")
    ]
    found = [re.findall(_PACKAGES, reason) for reason in reasons]
    packages = {
        name for each in found for names in each for name in names.split()
    }
    if packages:
        terminalreporter.write_line(
            f"{sum(map(bool, found))} tests were skipped for want of programs: "
            f"apt-get install {' '.join(sorted(packages))}"
        )


# ---- Skipped tests ----

# In the reason of a skipped test: what brings what it needs.
_PACKAGES = r"apt-get install ([\w.+ -]+)"
# The path of a file of regular expressions, one a line: any other test that is
# skipped fails, also in jobs of ranks.
EXPECTED = os.environ.get("EXPECTED_SKIPS")
_Report = TypeVar("_Report", pytest.TestReport, pytest.CollectReport)


def _reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Returns the test's name and why it was skipped."""
    where = report.longrepr
    reason = where[2] if isinstance(where, tuple) else str(where)
    return f"{report.nodeid}: {reason.removeprefix('Skipped: ')}"


def _judge(report: _Report) -> _Report:
    if EXPECTED is None or not report.skipped or hasattr(report, "wasxfail"):
        return report
    reason = _reason_of(report)
    lines = pathlib.Path(EXPECTED).read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    if not any(re.search(pattern, reason) for pattern in patterns):
        report.outcome = "failed"
        report.longrepr = f"Skipped, but not expected in {EXPECTED}: {reason}"
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[
    None, pytest.TestReport, pytest.TestReport
]:
    return _judge((yield))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[
    None, pytest.CollectReport, pytest.CollectReport
]:
    return _judge((yield))


def pytest_ignore_collect(
    collection_path: pathlib.Path, config: pytest.Config
) -> bool | None:
    """Collects the tests of ranks in a job only, or if asked for by name."""
    if collection_path not in OF_RANKS or "HVD_RANK" in os.environ:
        return None
    start = config.invocation_params.dir
    for argument in config.args:
        path = (start / argument.split("::")[0]).resolve()
        if path == collection_path or collection_path in path.parents:
            return None
    return True
