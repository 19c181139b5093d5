"""XLA's programs work under settings that only a new process can take."""

from __future__ import annotations

import pathlib
import sys

import jobs
import pytest

_HERE = pathlib.Path(__file__).parent


@pytest.mark.thorough
@pytest.mark.parametrize("num_threads", ["1", "2"])
def test_many_collectives_run_at_once(num_threads: str) -> None:
    """All results are right with delays, unequal programs and a death."""
    environ = jobs.clean_environ(TF_NUM_INTRAOP_THREADS=num_threads)
    command = [sys.executable, str(_HERE / "xla_rank.py")]
    outcome = jobs.run("-np", "2", "--", *command, seconds=90, environ=environ)
    assert "200 runs were right" in outcome.lines(0), outcome.stderr
    assert "200 runs were right" in outcome.lines(1), outcome.stderr
    assert "then PeerLostError" in outcome.lines(0), outcome.stderr
    assert outcome.status == 7


@pytest.mark.thorough
def test_training_works_with_auto_clustering(
    tmp_path: pathlib.Path,
) -> None:
    """Auto-clustering leaves our ops outside XLA's programs."""
    environ = jobs.clean_environ(
        TF_XLA_FLAGS="--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit",
        XLA_FLAGS=f"--xla_dump_to={tmp_path}",
    )
    tests = _HERE.parent / "parallel" / "test_keras_equality.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [
        "--thorough",
        str(tests),
        "-k",
        "one_process and embedding_adam",
    ]
    outcome = jobs.run("-np", "2", "--", *command, seconds=120, environ=environ)
    assert outcome.status == 0, outcome.stdout + outcome.stderr
    assert any(tmp_path.glob("*cluster*")), "nothing was compiled"
