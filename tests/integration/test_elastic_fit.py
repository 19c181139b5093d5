"""A `fit` goes on when ranks die, leave or come."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

import elastic_moments
import jobs
import pytest
from selection import thorough_except

_RANK = str(pathlib.Path(__file__).with_name("elastic_fit_rank.py"))


def _run(
    num_ranks: int,
    *options: str,
    restarts: int = 0,
    backend: str = "",
    hvdrun: tuple[str, ...] = (),
    **extra: str,
) -> tuple[jobs.Outcome, list[dict[str, Any]]]:
    """Runs an elastic job; returns what the ranks told that finished."""
    if backend:
        extra["KERAS_BACKEND"] = backend
    outcome = jobs.run(
        *("-np", str(num_ranks), "--min-np", "1"),
        *("--max-restarts", str(restarts), *hvdrun, "--"),
        *(sys.executable, _RANK, *options),
        seconds=120,
        environ=jobs.clean_environ(**extra),
    )
    lines = [line.partition("] ")[2] for line in outcome.stdout.splitlines()]
    told = [json.loads(line) for line in lines if line.startswith("{")]
    return outcome, told


def _check(told: list[dict[str, Any]], members: list[int], epochs: int) -> None:
    assert sorted(each["member"] for each in told) == members
    assert len({each["weights"] for each in told}) == 1
    for each in told:
        assert each["size"] == len(members)
        assert each["rows"] == [[1, 1]] * epochs  # each row once an epoch
        assert each["epochs"] == list(range(epochs))
        assert each["losses"] == epochs


@pytest.mark.parametrize(
    "backend",
    [
        "tensorflow",
        pytest.param("jax", marks=pytest.mark.thorough),
        pytest.param("torch", marks=pytest.mark.thorough),
    ],
)
def test_survivors_of_rank_0_go_on_in_their_processes(backend: str) -> None:
    options = ("--action", "kill", "--at", "13", "--members", "0")
    # JAX traces a step once for each shape: the last batch has that of others.
    policy = "pad" if backend == "jax" else "split"
    outcome, told = _run(3, *options, "--policy", policy, backend=backend)
    assert outcome.status == 0, outcome.stderr
    _check(told, [1, 2], epochs=2)
    for each in told:
        assert each["begun"] == [each["member"]]  # one `on_train_begin`
        # At most a commit interval of steps was lost: 0.3 s of 20 ms each.
        assert 0 <= each["steps_done"] - each["steps"] <= 16
        if backend != "torch":  # which traces nothing
            assert each["new_traces"] == 0


def test_ranks_that_train_apart_go_on_from_a_meeting() -> None:
    options = ("--action", "kill", "--at", "13", "--members", "0")
    outcome, told = _run(3, *options, "--local-updates", "7")
    assert outcome.status == 0, outcome.stderr
    _check(told, [1, 2], epochs=2)
    for each in told:
        assert 0 <= each["steps_done"] - each["steps"] <= 16


@pytest.mark.thorough
def test_a_new_rank_trains_apart() -> None:
    options = ("--action", "kill", "--at", "13", "--members", "1")
    slow = ("--epochs", "12", "--pause", "0.05")
    outcome, told = _run(3, *options, *slow, "--local-updates", "5", restarts=1)
    assert outcome.status == 0, outcome.stderr
    _check(told, [0, 2, 3], epochs=12)


def test_a_rank_that_is_started_again_grows_the_job() -> None:
    options = ("--action", "kill", "--at", "13", "--members", "1")
    slow = ("--epochs", "12", "--pause", "0.05")
    outcome, told = _run(3, *options, *slow, restarts=1)
    assert outcome.status == 0, outcome.stderr
    _check(told, [0, 2, 3], epochs=12)
    for each in told:  # nobody waits for a step to be traced
        assert each["new_traces"] == 0 or each["member"] == 3


@pytest.mark.parametrize(
    "action",
    [
        "commit",
        pytest.param("test", marks=pytest.mark.thorough),
    ],
)
def test_a_death_loses_no_state(action: str) -> None:
    options = ("--action", action, "--at", "9", "--members", "1", "3")
    outcome, told = _run(4, *options)
    assert outcome.status == 0, outcome.stderr
    _check(told, [0, 2], epochs=2)


@pytest.mark.thorough
def test_a_rank_that_is_told_to_leave_loses_no_step() -> None:
    options = ("--action", "leave", "--at", "13", "--members", "0")
    outcome, told = _run(3, *options)
    assert outcome.status == 0, outcome.stderr
    assert "Error" not in outcome.stderr.replace("ChangeDueError", "")
    _check(told, [1, 2], epochs=2)
    for each in told:
        assert each["steps_done"] == each["steps"]


_ANEW = "no rank that has trained is left: training begins anew"


@pytest.mark.thorough
def test_hvdrun_tells_that_all_work_is_lost() -> None:
    options = ("--action", "kill", "--at", "30", "--members", "0", "1")
    outcome, told = _run(2, *options, restarts=2)
    assert outcome.status == 0, outcome.stderr
    _check(told, [2, 3], epochs=2)
    assert outcome.stderr.count(_ANEW) == 1
    assert "`directory=`" in outcome.stderr
    for each in told:
        assert each["steps_done"] == each["steps"]


def test_commits_on_disk_outlive_all_ranks(tmp_path: pathlib.Path) -> None:
    options = ("--action", "kill", "--at", "30", "--members", "0", "1")
    directory = ("--dir", str(tmp_path / "commits"))
    outcome, told = _run(2, *options, *directory, restarts=2)
    assert outcome.status == 0, outcome.stderr
    _check(told, [2, 3], epochs=2)
    assert _ANEW not in outcome.stderr
    for each in told:
        assert each["steps_done"] < each["steps"]


@pytest.mark.thorough
def test_a_loss_that_leaves_a_rank_loses_no_work() -> None:
    options = ("--action", "kill", "--at", "13", "--members", "0")
    slow = ("--epochs", "6", "--pause", "0.05")
    outcome, told = _run(2, *options, *slow, restarts=1)
    assert outcome.status == 0, outcome.stderr
    _check(told, [1, 2], epochs=6)
    assert _ANEW not in outcome.stderr


@pytest.mark.parametrize(
    "action", ["kill", pytest.param("leave", marks=pytest.mark.thorough)]
)
def test_a_new_rank_0_writes_the_commits_at_once(
    tmp_path: pathlib.Path, action: str
) -> None:
    options = ("--action", action, "--at", "13", "--members", "0")
    directory = ("--dir", str(tmp_path / "commits"))
    outcome, told = _run(3, *options, *directory)
    assert outcome.status == 0, outcome.stderr
    _check(told, [1, 2], epochs=2)
    for complaint in ("waiting for its end", "was not written"):
        assert complaint not in outcome.stderr
    assert not (tmp_path / "commits").exists()


def test_a_job_that_was_killed_goes_on_from_disk(
    tmp_path: pathlib.Path,
) -> None:
    directory = ("--dir", str(tmp_path / "commits"))
    options = ("--action", "kill", "--at", "30", "--members", "0", "1")
    outcome, told = _run(2, *options, *directory)
    assert outcome.status != 0
    assert not told
    outcome, told = _run(2, *directory)
    assert outcome.status == 0, outcome.stderr
    _check(told, [0, 1], epochs=2)
    for each in told:
        assert each["steps_done"] < each["steps"]
    assert not (tmp_path / "commits").exists()


@pytest.mark.parametrize("action", thorough_except(["stall", "hang"], "stall"))
def test_a_rank_that_does_not_come_loses_no_state(action: str) -> None:
    outcome, told = _run(
        3,
        *("--action", action, "--at", "13", "--members", "1"),
        HVD_STALL_CHECK_TIME_SECONDS="1",
        HVD_STALL_SHUTDOWN_TIME_SECONDS="3",
        HVD_START_TIMEOUT="8",
    )
    assert outcome.status == 0, outcome.stderr
    assert "a new membership begins: StalledError" in outcome.stderr
    _check(told, [0, 1, 2] if action == "stall" else [0, 2], epochs=2)


@pytest.mark.parametrize(
    ("moment", "action"),
    [
        pytest.param(*each, marks=pytest.mark.nightly if number % 9 else ())
        for number, each in enumerate(elastic_moments.MOMENTS)
    ],
)
def test_a_rank_dies_while_the_members_change(moment: str, action: str) -> None:
    outcome, told = _run(
        3,
        *("--action", action, "--at", "9", "--members", "2"),
        *("--moment", moment, "--dies", "1", "--pause", "0.01"),
        HVD_STALL_CHECK_TIME_SECONDS="2",
        HVD_STALL_SHUTDOWN_TIME_SECONDS="5",
    )
    assert outcome.status == 0, outcome.stderr
    _check(told, [0], epochs=2)


@pytest.mark.thorough
def test_a_slow_rank_is_left_out() -> None:
    outcome, told = _run(
        3,
        *("--action", "slow", "--members", "1", "--epochs", "3"),
        hvdrun=("--evict-stragglers", "1.5"),
        HVD_STRAGGLER_SECONDS="2",
    )
    assert outcome.status == 0, outcome.stderr
    said = "hvdrun: member 1 (rank 1) was waited for "
    assert said in outcome.stderr
    assert "it has to leave (--evict-stragglers)" in outcome.stderr
    assert "hvdrun: member 1 leaves: " in outcome.stderr
    _check(told, [0, 2], epochs=3)
