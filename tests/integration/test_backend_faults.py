"""`fit` raises when a rank dies, on JAX and torch, without TensorFlow."""

from __future__ import annotations

import importlib.util
import pathlib
import sys

import jobs
import pytest

_RANK = pathlib.Path(__file__).with_name("backend_fault_rank.py")


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_fit_raises_peer_lost_and_the_model_lives(
    backend: str, tmp_path: pathlib.Path
) -> None:
    if importlib.util.find_spec(backend) is None:
        pytest.skip(f"{backend} is not installed")
    path = tmp_path / "saved.weights.h5"
    command = [sys.executable, str(_RANK), str(path)]
    environ = jobs.clean_environ(KERAS_BACKEND=backend)
    job = jobs.run(*("-np", "2", "--", *command), seconds=120, environ=environ)
    lines = dict(line.split(": ", 1) for line in job.lines(0))
    assert "rank 1 (pid " in lines["error"], job.stderr
    assert lines["steps"] == "3"
    assert lines["finite"] == "True"
    assert lines["tensorflow"] == "False"
    assert path.exists()
