"""What holds in all tests: which run where, and how tf.data does."""

from __future__ import annotations

import os
import pathlib

import pytest

# Run in jobs: by test_parallel_suite.py, test_gpu_suite.py, and
# test_backend_suite.py, which sets KERAS_BACKEND.
OF_RANKS = [
    pathlib.Path(__file__).parent / name
    for name in ("parallel", "gpu", "backends")
]


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
