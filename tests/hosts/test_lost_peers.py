"""Whatever dies, each rank that is left names it at once, and nothing stays."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path

import pytest
from lost_peers import Job, own_pid, running
from network import Network, free_port, wait_for
from two_hosts import NAMES

_SECONDS = 1.0  # until all know


def _victim(job: Job, what: str) -> tuple[list[int], list[str]]:
    """Returns the pids to kill, and patterns that errors must match."""
    ranks = job.ranks()
    if what == "wire":
        pid = job.wires()[1]
        return [pid], [rf"wire of host hostb \(pid {own_pid(pid)}\).*SIGKILL"]
    if what == "host":  # the first process of a namespace is its end
        number = job.processes[1].pid
        (pid,) = _children(number)
        dead = list(job.ranks_of(1))
    else:
        rank = {"rank": 3, "leader": 2, "rank 0": 0}[what]
        pid, dead = ranks[rank], [rank]
    names = []
    for rank in dead:
        process = f"host {NAMES[rank // 2]}, pid {own_pid(ranks[rank])}"
        names.append(rf"[Rr]ank {rank} .*{process}\)")
    return [pid], ["|".join(names)]


def _children(parent: int) -> list[int]:
    path = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(pid) for pid in path.read_text().split()]


def _check(job: Job, killed_at: float, patterns: list[str]) -> None:
    """All ranks that were not killed name what was."""
    for rank in range(job.size):
        failure = job.notes(rank).get("fails")
        if failure is None:
            continue
        assert failure["error"] == "PeerLostError", (rank, failure)
        assert float(failure["time"]) - killed_at < _SECONDS, (rank, failure)
        for pattern in patterns:
            assert re.search(pattern, str(failure["text"])), (rank, failure)


def _kill_and_check(job: Job, what: str, num_left: int) -> list[str]:
    pids, patterns = _victim(job, what)
    killed_at = time.time()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    ends = job.finish()
    assert all(status != 0 for status, _ in ends), ends
    _check(job, killed_at, patterns)
    # A rank of a dying host may see another one die before.
    dying = job.ranks_of(1) if what == "host" else ()
    fails = [
        rank
        for rank in range(job.size)
        if "fails" in job.notes(rank) and rank not in dying
    ]
    assert len(fails) == num_left, ends
    wait_for(job.is_gone, 5)
    return [stderr for _, stderr in ends]


@pytest.mark.parametrize(
    "what",
    [
        "leader",
        "wire",
        pytest.param("rank", marks=pytest.mark.thorough),
        pytest.param("rank 0", marks=pytest.mark.thorough),
    ],
)
def test_all_ranks_name_what_was_killed(
    network: Network, tmp_path: Path, what: str
) -> None:
    with running(network, tmp_path) as job:
        job.wait_for("works")
        num_left = 4 if what == "wire" else 3
        stderr = _kill_and_check(job, what, num_left)[0]
        verdict = {
            "leader": "rank 2 (host hostb) failed first: SIGKILL",
            "wire": "wire of host hostb",
            "rank": "rank 3 (host hostb) failed first: SIGKILL",
            "rank 0": "rank 0 (host hosta) failed first: SIGKILL",
        }
        assert verdict[what] in stderr


@pytest.mark.parametrize("what", ["wire", "leader"])
def test_a_kill_while_the_hosts_connect_is_named(
    network: Network, tmp_path: Path, what: str
) -> None:
    with running(network, tmp_path) as job:
        wait_for(lambda: len(job.wires()) == 2, 60)
        _kill_and_check(job, what, 4 if what == "wire" else 3)


def test_a_host_that_is_gone_is_named(network: Network, tmp_path: Path) -> None:
    with running(network, tmp_path) as job:
        job.wait_for("works")
        stderr = _kill_and_check(job, "host", 2)[0]
        assert "host hostb was lost" in stderr


@pytest.mark.parametrize(
    "what", ["leader", pytest.param("wire", marks=pytest.mark.thorough)]
)
def test_ranks_without_hvdrun_name_what_was_killed(
    network: Network, tmp_path: Path, what: str
) -> None:
    with running(network, tmp_path, way="plain") as job:
        job.wait_for("works")
        _kill_and_check(job, what, 4 if what == "wire" else 3)


def test_those_who_are_left_meet_again(
    network: Network, tmp_path: Path
) -> None:
    again = {
        "AGAIN_RANKS": "0,1,3",
        "AGAIN_HOSTS": "0,0,1,1",
        "AGAIN_PORT": str(free_port()),
    }
    with running(network, tmp_path, way="plain", **again) as job:
        job.wait_for("works")
        os.kill(job.ranks()[2], signal.SIGKILL)
        job.finish()
        for rank in (0, 1, 3):
            assert job.notes(rank)["meets again"]["total"] == 3.0
        wait_for(job.is_gone, 5)


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["nnodes", "ssh", "plain"])
@pytest.mark.parametrize("trial", range(4))
def test_a_kill_at_any_moment_leaves_nothing(
    network: Network, tmp_path: Path, way: str, trial: int
) -> None:
    what = random.choice(["rank", "leader", "rank 0", "wire"])
    # Without hvdrun nobody can tell of a rank that dies before it has come.
    settings = {"HVD_START_TIMEOUT": "15"}
    with running(network, tmp_path, way=way, **settings) as job:
        job.wait_for("starts")
        time.sleep(random.uniform(0, 3))
        try:
            pids, _ = _victim(job, what)
        except (KeyError, OSError):  # it is not there yet
            pids = list(job.ranks().values())[:1]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert all(status != 0 for status, _ in job.finish()), what
        wait_for(job.is_gone, 5)


@pytest.mark.parametrize("what", ["host", "wire"])
def test_all_ranks_name_what_died_in_an_int8_allreduce(
    network: Network, tmp_path: Path, what: str
) -> None:
    with running(network, tmp_path, WIRE_FORMAT="1") as job:
        job.wait_for("works")
        _kill_and_check(job, what, 2 if what == "host" else 4)
