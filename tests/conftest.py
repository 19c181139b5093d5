"""What holds in all tests: which run where and when, and how tf.data does."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable

import pytest

# Run in jobs: by test_parallel_suite.py, test_gpu_suite.py, and
# test_backend_suite.py, which sets KERAS_BACKEND.
OF_RANKS = [
    pathlib.Path(__file__).parent / name
    for name in ("parallel", "gpu", "backends")
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--thorough",
        action="store_true",
        help="run all tests; else those marked `thorough` are left out",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "thorough(*numbers): left out, on these numbers of ranks or on any, "
        "unless --thorough is given",
    )


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leaves out what is slow and says little more than the rest.

    What holds on 2 and 3 ranks rarely fails on 4, and what is done once on 1
    rank by every other test need not be done with all options.
    """
    if config.getoption("thorough"):
        return
    left_out = [item for item in items if _is_thorough(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _is_thorough(item: pytest.Item) -> bool:
    num_ranks = int(os.environ.get("HVD_SIZE", "1"))
    return any(
        not marker.args or num_ranks in marker.args
        for marker in item.iter_markers("thorough")
    )


COUNTS = pytest.StashKey[list[str]]()


@pytest.fixture(scope="session")
def note_counts(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Takes a line on the tests of a job, for the end of the output."""
    return pytestconfig.stash.setdefault(COUNTS, []).append


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
    """Skips the tests of many ranks, unless in a job or asked for by name."""
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

    Its tuner may overlook that an iterator is deleted, and holds that up until
    its next turn, which comes as late again as it has run (seen in TF 2.21, in
    a third of all deletions).
    """
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False
    iterate = tf.data.Dataset.__iter__
    tf.data.Dataset.__iter__ = lambda self: iterate(self.with_options(options))


if os.environ.get("KERAS_BACKEND", "tensorflow") == "tensorflow":
    _disable_autotuning()
