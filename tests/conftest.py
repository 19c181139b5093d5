"""What holds in all tests: which run where, and how tf.data does."""

from __future__ import annotations

import os
import pathlib

import pytest
import tensorflow as tf

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


def _disable_autotuning() -> None:
    """Keeps tf.data from tuning its threads.

    Its tuner may overlook that an iterator is deleted, and holds that up until
    its next turn, which comes as late again as it has run (seen in TF 2.21, in
    a third of all deletions).
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    iterate = tf.data.Dataset.__iter__
    tf.data.Dataset.__iter__ = lambda self: iterate(self.with_options(options))


_disable_autotuning()
