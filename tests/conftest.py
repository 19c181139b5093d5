"""Keeps tests that need ranks out of a plain `pytest tests`."""

from __future__ import annotations

import os
import pathlib

import pytest

PARALLEL = pathlib.Path(__file__).parent / "parallel"


def pytest_ignore_collect(
    collection_path: pathlib.Path, config: pytest.Config
) -> bool | None:
    """Skips tests/parallel, unless in a job or asked for by name.

    `test_parallel_suite.py` runs it in jobs of 1, 2 and 4 ranks.
    """
    if collection_path != PARALLEL or "HVD_RANK" in os.environ:
        return None
    start = config.invocation_params.dir
    for argument in config.args:
        path = (start / argument.split("::")[0]).resolve()
        if path == PARALLEL or PARALLEL in path.parents:
            return None
    return True
