"""Whatever dies, nothing is left on any host, and the right one is named."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from network import ADDRESSES, Network, finish, free_port, python, wait_for

# Ranks that say that they are there, and wait; each has a child.
_WAIT = """
    import os, subprocess, sys, time
    child = subprocess.Popen(["sleep", "1000"])
    print("up", flush=True)
    time.sleep(1000)
"""


def _start(network: Network, code: str = _WAIT) -> subprocess.Popen[str]:
    job = network.hvdrun(
        0, "--grace", "0.3", "--verbose", "-H", "hosta:2,hostb:2", "--",
        *python(code), HVD_HEARTBEAT_SECONDS="0.3", HVD_HEARTBEAT_TIMEOUT="1",
    )  # fmt: skip
    wait_for(lambda: len(network.processes("sleep 1000")) == 4, 20)
    return job


def _nothing_is_left(network: Network) -> bool:
    return not any(
        network.processes(text) for text in ("sleep", "hvd_keras.run", "print(")
    )


def _ranks(network: Network) -> dict[int, int]:
    """Returns the pids of the ranks that run, by rank."""
    found = {}
    for pid in network.processes("print("):
        try:
            environ = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        match = re.search(rb"HVD_RANK=(\d+)", environ)
        if match:
            found[int(match[1])] = pid
    return found


def _agent(network: Network) -> int:
    """Returns the agent."""
    command = f"{sys.executable} -m hvd_keras.run.hosts.agent"
    found = network.processes(command)
    return _parent_of_all([pid for pid in found if not _is_ssh(pid)])


def _is_ssh(pid: int) -> bool:
    """Whether it is a client of ssh, or a shell that will become an agent."""
    return "python" not in Path(f"/proc/{pid}/comm").read_text()


def _hvdrun(network: Network) -> int:
    """Returns hvdrun on the first host."""
    return _parent_of_all(network.processes("hvd_keras.run --grace"))


def _parent_of_all(pids: list[int]) -> int:
    """Returns the one that is no child of another; its guard is one."""
    (found,) = [pid for pid in pids if _parent(pid) not in pids]
    return found


def _parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


def test_killed_rank_of_another_host_is_named(network: Network) -> None:
    job = _start(network)
    os.kill(_ranks(network)[3], signal.SIGKILL)
    status, _, stderr = finish(job)
    assert status == 137
    assert "rank 3 (host hostb) failed first: SIGKILL" in stderr
    assert re.search(r"^0 +hosta +\d+ +SIGTERM by hvdrun", stderr, re.M)
    assert re.search(r"^3 +hostb +\d+ +SIGKILL$", stderr, re.M)
    wait_for(lambda: _nothing_is_left(network))


@pytest.mark.timed
def test_killed_agent_is_named_and_its_ranks_end(network: Network) -> None:
    job = _start(network)
    os.kill(_agent(network), signal.SIGKILL)
    started = time.monotonic()
    status, _, stderr = finish(job)
    assert time.monotonic() - started < 3
    assert status == 1
    assert "host hostb was lost: the connection ended" in stderr
    assert "it had ranks 2, 3" in stderr
    assert "rank 2 failed first: its host hostb was lost" in stderr
    wait_for(lambda: _nothing_is_left(network))


def test_killed_hvdrun_leaves_nothing(network: Network) -> None:
    job = _start(network)
    hvdrun = _hvdrun(network)
    os.kill(hvdrun, signal.SIGKILL)
    wait_for(lambda: _nothing_is_left(network), 3)
    finish(job)


def test_job_outlives_its_ssh(network: Network) -> None:
    job = _start(network)
    for pid in network.processes("ssh -F"):
        os.kill(pid, signal.SIGKILL)
    time.sleep(0.5)
    assert len(network.processes("sleep 1000")) == 4
    os.kill(_ranks(network)[2], signal.SIGKILL)
    status, _, stderr = finish(job)
    assert status == 137
    assert "rank 2 (host hostb) failed first" in stderr
    wait_for(lambda: _nothing_is_left(network))


@pytest.mark.timed
def test_cut_cable_is_noticed_on_both_hosts(network: Network) -> None:
    job = _start(network)
    started = time.monotonic()
    network.cut()
    try:
        status, _, stderr = finish(job)
        assert 0.5 < time.monotonic() - started < 5
        assert status == 1
        assert "host hostb was lost: " in stderr
        wait_for(lambda: _nothing_is_left(network), 5)
    finally:
        network.mend()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_hvdrun_reaches_all_hosts(
    network: Network, number: signal.Signals
) -> None:
    job = _start(network)
    hvdrun = _hvdrun(network)
    os.kill(hvdrun, number)
    status, _, stderr = finish(job)
    assert status == 128 + number
    how = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
    assert f"hvdrun: {how}\n" in stderr
    assert "failed first" not in stderr
    if number == signal.SIGTERM:
        assert stderr.count("SIGTERM") == 5  # four ranks, and the last line
    wait_for(lambda: _nothing_is_left(network))


def test_signal_to_an_agent_reaches_all_hosts(network: Network) -> None:
    job = _start(network)
    os.kill(_agent(network), signal.SIGTERM)
    status, _, _ = finish(job)
    assert status == 143
    wait_for(lambda: _nothing_is_left(network))


def test_stopped_agent_is_lost(network: Network) -> None:
    job = _start(network)
    agent = _agent(network)
    os.kill(agent, signal.SIGSTOP)
    status, _, stderr = finish(job)
    assert status == 1
    assert "host hostb was lost: it was silent for 1 s" in stderr
    os.kill(agent, signal.SIGCONT)
    wait_for(lambda: _nothing_is_left(network))


@pytest.mark.thorough
def test_stopped_hvdrun_is_not_lost(network: Network) -> None:
    # Nobody reads its output either: so it waits, too, before it is stopped.
    endless = "while True: print('x' * 1000)"
    job = _start(network, _WAIT.replace("time.sleep(1000)", endless))
    hvdrun = _hvdrun(network)
    os.kill(hvdrun, signal.SIGSTOP)
    time.sleep(3)
    assert len(network.processes("sleep 1000")) == 4
    os.kill(hvdrun, signal.SIGCONT)
    os.kill(_ranks(network)[2], signal.SIGKILL)
    status, _, stderr = finish(job)
    assert status == 137, stderr
    wait_for(lambda: _nothing_is_left(network))


def test_a_host_that_is_gone_ends_the_own_hvdruns(network: Network) -> None:
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    jobs = [
        network.hvdrun(
            host, "--grace", "0.3", "--nnodes", "2", "--node-rank", str(host),
            "--rdzv-endpoint", endpoint, "-np", "1", "--", *python(_WAIT),
            HVD_SECRET="5a" * 32,
        )
        for host in (0, 1)
    ]  # fmt: skip
    wait_for(lambda: len(network.processes("sleep 1000")) == 2, 20)
    jobs[0].kill()
    status, _, stderr = finish(jobs[1])
    assert status == 1
    assert "the job was lost: the connection ended" in stderr
    finish(jobs[0])
    wait_for(lambda: _nothing_is_left(network))


_VICTIMS: dict[str, Callable[[Network], int]] = {
    "rank": lambda network: random.choice(list(_ranks(network).values())),
    "agent": _agent,
    "hvdrun": _hvdrun,
    "ssh": lambda network: min(network.processes("ssh -F")),
}


@pytest.mark.thorough
@pytest.mark.parametrize("victim", _VICTIMS)
@pytest.mark.parametrize("trial", range(3))
def test_kill_at_any_moment_leaves_nothing(
    network: Network, victim: str, trial: int
) -> None:
    job = network.hvdrun(
        0, "--grace", "0.3", "-H", "hosta:2,hostb:2", "--", *python(_WAIT)
    )
    started = time.monotonic()
    moment = random.uniform(0.2, 1.5)
    while job.poll() is None:
        try:
            pid = _VICTIMS[victim](network)
        except (IndexError, OSError, ValueError):  # it is not there yet
            assert time.monotonic() - started < 20
            time.sleep(0.02)
            continue
        if time.monotonic() - started >= moment:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            break

    def is_ended() -> bool:
        for pid in _ranks(network).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return job.poll() is not None

    if victim == "ssh":  # if the agent had come by then, the job goes on
        wait_for(is_ended, 30)
    status, _, stderr = finish(job)
    assert status != 0, stderr
    wait_for(lambda: _nothing_is_left(network))
