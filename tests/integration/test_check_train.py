"""`hvdrun --check --train` runs a test job, and says what came of it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import jobs
import pytest
from selection import thorough_except


@pytest.mark.parametrize(
    "backend", thorough_except(["tensorflow", "jax", "torch"], "tensorflow")
)
def test_a_small_model_trains_as_on_one_process(backend: str) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    environ = jobs.clean_environ(KERAS_BACKEND=backend)
    job = jobs.run("--check", "--train", seconds=200, environ=environ)
    assert job.status == 0, job.stderr
    assert f"steps on 2 ranks with {backend}" in job.stdout
    assert "one process     equal: weights differ by " in job.stdout
    assert re.search(r"allreduce  .* ms: \d+\.\d\d GB/s\n", job.stdout)
    # The check is as without the job.
    assert "\nTensorFlow ops  " in job.stdout


def test_ranks_that_train_apart_are_told(tmp_path: Path) -> None:
    # What hvd_keras does with an optimizer is lost.
    (tmp_path / "sitecustomize.py").write_text(
        "import hvd_keras\n"
        "hvd_keras.DistributedOptimizer = lambda optimizer: optimizer\n"
    )
    environ = jobs.clean_environ()
    path = f"{tmp_path}:{environ.get('PYTHONPATH', '')}"
    environ["PYTHONPATH"] = path
    job = jobs.run(
        *("--check", "--train", "-np", "3"), seconds=200, environ=environ
    )
    assert job.status == 1, job.stdout
    assert "NOT EQUAL" in job.stdout
    assert "3 ranks train here as one process does" not in job.stdout
