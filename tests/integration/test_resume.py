"""A killed job that is started again ends with the same weights."""

from __future__ import annotations

import os
import pathlib
import random
import sys

import jobs
import numpy as np
import pytest

_RANK = str(pathlib.Path(__file__).with_name("resume_rank.py"))


def _run(directory: pathlib.Path, *options: str) -> jobs.Outcome:
    directory.mkdir(exist_ok=True)
    command = [sys.executable, _RANK, "--dir", str(directory), *options]
    return jobs.run("-np", "2", "--", *command, seconds=120)


def _weights(directory: pathlib.Path) -> list[dict[str, np.ndarray]]:
    return [dict(np.load(directory / f"rank.{rank}.npz")) for rank in (0, 1)]


@pytest.mark.thorough
def test_a_killed_job_ends_with_the_weights_of_an_undisturbed_one(tmp_path):
    assert _run(tmp_path / "whole").status == 0
    kill_at = random.randint(12, 20)  # of 30 steps; 10 make an epoch
    options = ("--save-freq", "1")
    killed = _run(tmp_path / "killed", "--kill-at", str(kill_at), *options)
    assert killed.status != 0, killed.stderr
    assert os.listdir(tmp_path / "killed") == ["backup"]
    resumed = _run(tmp_path / "killed", *options)
    assert resumed.status == 0, resumed.stderr
    # It did not start from the beginning.
    assert resumed.lines(0)[-1] in ("epochs 1", "epochs 2"), kill_at
    for ours, theirs in zip(
        _weights(tmp_path / "killed"), _weights(tmp_path / "whole"), strict=True
    ):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            assert value.tobytes() == theirs[name].tobytes(), (kill_at, name)
