"""Decides which tests run where, and keeps tf.data from tuning itself."""

from __future__ import annotations

import os
import pathlib
import signal
from collections.abc import Callable
from typing import Any

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
    parser.addoption(
        "--thorough-ranks",
        type=int,
        default=1 << 30,
        metavar="N",
        help="with --thorough: tests of ops run them in jobs of up to N ranks",
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
    config.addinivalue_line(
        "markers",
        "thorough(*numbers): runs only with --thorough, on these numbers of "
        "ranks or on any",
    )
    config.addinivalue_line(
        "markers", "nightly: runs only with NIGHTLY=1 in the environment"
    )


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


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.get(COUNTS, [])
    if lines:
        terminalreporter.section("tests in jobs of ranks")
    for line in lines:
        terminalreporter.write_line(line)


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


def _disable_autotuning() -> None:
    """Keeps tf.data from tuning its threads.

    The tuner may overlook that an iterator is being deleted. The deletion then
    waits for the tuner's next turn, which doubles the run time (TF 2.21, in a
    third of all deletions).
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    iterate = tf.data.Dataset.__iter__
    tf.data.Dataset.__iter__ = lambda self: iterate(self.with_options(options))


if os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow":
    _disable_autotuning()
