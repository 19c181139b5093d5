"""Horovod's elastic programs run, and go on when ranks die and come."""

from __future__ import annotations

import sys
from pathlib import Path

import jobs
import pytest

_PROGRAMS = Path(__file__).parent / "horovod_programs"


def _ends(program: str, *options: str, restarts: int = 0) -> list[list[str]]:
    """Runs three ranks; returns the last words of those that finished."""
    job = jobs.run(
        *("--horovod-compat", "-np", "3", "--min-np", "1"),
        *("--max-restarts", str(restarts), "--"),
        *(sys.executable, str(_PROGRAMS / program), *options),
        seconds=120,
        environ=jobs.clean_environ(),
    )
    assert job.status == 0, job.stderr
    lines = [line.partition("] ")[2] for line in job.stdout.splitlines()]
    return [line.split()[1:] for line in lines if line.startswith("end ")]


def test_a_loop_goes_on_without_a_rank() -> None:
    ends = _ends("elastic_loop.py", "--kill-at", "17")
    assert len(ends) == 2
    # All steps, two ranks, and their rate; then the weights.
    assert {tuple(end[:3]) for end in ends} == {("40", "2", "0.02")}
    assert len({end[3] for end in ends}) == 1


@pytest.mark.thorough
def test_a_loop_takes_in_a_new_rank() -> None:
    options = ("--kill-at", "17", "--steps", "3000", "--pause", "0.01")
    ends = _ends("elastic_loop.py", *options, restarts=1)
    assert len(ends) == 3
    assert {tuple(end[:3]) for end in ends} == {("3000", "3", "0.03")}
    assert len({end[3] for end in ends}) == 1


def test_a_loop_of_torch_goes_on_without_a_rank() -> None:
    ends = _ends("torch_elastic.py", "--kill-at", "9")
    assert len(ends) == 2
    assert {tuple(end[:3]) for end in ends} == {("3", "2", "0.02")}
    assert len({end[3] for end in ends}) == 1


@pytest.mark.thorough
def test_a_loop_of_torch_takes_in_a_new_rank() -> None:
    options = ("--kill-at", "9", "--until-size", "3")
    ends = _ends("torch_elastic.py", *options, restarts=1)
    assert len(ends) == 3
    assert {tuple(end[1:3]) for end in ends} == {("3", "0.03")}
    assert len({(end[0], end[3]) for end in ends}) == 1


def test_a_fit_goes_on_without_a_rank() -> None:
    ends = _ends("elastic_keras.py", "--kill-at", "5")
    assert len(ends) == 2
    assert {tuple(end[:2]) for end in ends} == {("4", "2")}
    assert len({end[2] for end in ends}) == 1
