"""If a rank dies, leaves or does not come, the others are soon told why."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
import uuid

import pytest
from selection import thorough_except

_RANKS = pathlib.Path(__file__).with_name("fault_ranks.py")
_NUM_RANKS = 3
_MARK = "FAULT_TEST_MARK"


class Job:
    """Holds what the ranks of an ended job noted, and its output."""

    def __init__(self, directory: pathlib.Path, returncode: int, output: str):
        self.returncode = returncode
        self.output = output
        self._events: dict[int, list[dict]] = {
            rank: [
                json.loads(line)
                for line in (directory / f"rank.{rank}").read_text().split("\n")
                if line
            ]
            for rank in range(_NUM_RANKS)
            if (directory / f"rank.{rank}").exists()
        }

    def event(self, rank: int, name: str) -> dict:
        found = [e for e in self._events.get(rank, []) if e["event"] == name]
        assert len(found) == 1, (rank, name, self._events, self.output)
        return found[0]


def _marked_processes(mark: str) -> list[int]:
    pids = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{_MARK}={mark}".encode() in path.read_bytes():
                pids.append(int(path.parent.name))
        except OSError:
            continue
    return pids


def _continue_stopped(mark: str, done: threading.Event) -> None:
    """Continues stopped ranks after a while, so that they can end."""
    if not done.wait(6):
        for pid in _marked_processes(mark):
            os.kill(pid, signal.SIGCONT)


def run_job(directory: pathlib.Path, *flags: str, **environ: str) -> Job:
    mark = uuid.uuid4().hex
    before = set(os.listdir("/dev/shm"))
    command = [sys.executable, "-m", "hvd_keras.run", "-np", str(_NUM_RANKS)]
    command += ["--grace", "5", "--", sys.executable, str(_RANKS)]
    command += ["--dir", str(directory), *flags]
    done = threading.Event()
    helper = threading.Thread(target=_continue_stopped, args=(mark, done))
    helper.start()
    try:
        result = subprocess.run(
            command,
            env={**os.environ, _MARK: mark, **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        done.set()
        helper.join()
    # No process survives and no file is left, whatever happened.
    deadline = time.monotonic() + 5
    while _marked_processes(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _marked_processes(mark), result.stdout
    assert set(os.listdir("/dev/shm")) <= before
    return Job(directory, result.returncode, result.stdout)


def _check_survivors(job: Job, victim: int, event: str, *texts: str) -> None:
    gone = job.event(victim, "gone")["time"]
    for rank in range(_NUM_RANKS):
        if rank == victim:
            continue
        for name in (event, "afterwards"):
            seen = job.event(rank, name)
            assert seen["type"] == "PeerLostError", seen
            assert f"allreduce '{name}'" in seen["text"]
            assert f"rank {victim}" in seen["text"]
            for text in texts:
                assert text in seen["text"], seen
        assert job.event(rank, event)["time"] - gone < 1.0, job.output


_EVENT = {
    "before_the_first": "first",
    "while_others_wait": "waiting",
    "mid_allreduce": "large",
}


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize(
    "how", thorough_except(["sigkill", "os_exit"], "sigkill")
)
@pytest.mark.parametrize("when", sorted(_EVENT))
def test_survivors_learn_of_a_death(when, how, victim, tmp_path):
    job = run_job(
        tmp_path, "--when", when, "--how", how, "--victim", str(victim)
    )
    _check_survivors(job, victim, _EVENT[when], "died", "pid")
    assert job.returncode == (137 if how == "sigkill" else 5), job.output


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("when", ["before_the_first", "while_others_wait"])
def test_survivors_are_told_the_exception_that_ended_a_rank(
    when, victim, tmp_path
):
    job = run_job(
        tmp_path, "--when", when, "--how", "exception", "--victim", str(victim)
    )
    _check_survivors(job, victim, _EVENT[when], "ValueError: boom on purpose")
    assert job.returncode == 1, job.output


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("sys_exit", "its script ended without this call"),
        ("shutdown", "shutdown() was called"),
    ],
)
def test_survivors_learn_of_a_rank_that_leaves(how, text, tmp_path):
    job = run_job(
        tmp_path, "--when", "while_others_wait", "--how", how, "--victim", "2"
    )
    _check_survivors(job, 2, "waiting", "left the job", text)


@pytest.mark.timed
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_does_not_come_is_named(victim, tmp_path):
    job = run_job(
        tmp_path,
        *("--when", "does_not_come", "--victim", str(victim)),
        HVD_STALL_CHECK_TIME_SECONDS="0.3",
        HVD_STALL_SHUTDOWN_TIME_SECONDS="1",
    )
    others = [rank for rank in range(_NUM_RANKS) if rank != victim]
    waiting = f"ranks {others[0]} and {others[1]} wait"
    gone = job.event(victim, "gone")["time"]
    for rank in others:
        seen = job.event(rank, "absent")
        assert seen["type"] == "StalledError", seen
        assert (
            f"{waiting}, rank {victim} has not come within 1 s" in seen["text"]
        )
        assert 0.9 < seen["time"] - gone < 2.0
    assert f"'absent': {waiting}, rank {victim} has not come for 0.3 s" in (
        job.output
    )
    # The rank was busy, not gone: the job goes on.
    for rank in range(_NUM_RANKS):
        assert job.event(rank, "later")["text"] == str(float(_NUM_RANKS))
    assert job.returncode == 0, job.output


@pytest.mark.parametrize("victim", thorough_except([0, 1], 0))
def test_a_stopped_rank_fails_the_others_in_time(victim, tmp_path):
    job = run_job(
        tmp_path,
        *("--when", "mid_allreduce", "--how", "sigstop"),
        *("--victim", str(victim)),
        HVD_STALL_CHECK_TIME_SECONDS="0.3",
        HVD_STALL_SHUTDOWN_TIME_SECONDS="1",
    )
    gone = job.event(victim, "gone")["time"]
    for rank in range(_NUM_RANKS):
        if rank == victim:
            continue
        seen = job.event(rank, "large")
        assert seen["type"] in ("StalledError", "PeerLostError"), seen
        assert f"rank {victim}" in seen["text"], seen
        # The limit is 1 s; a silent coordinator is noticed 3 s later.
        assert seen["time"] - gone < 5.0
