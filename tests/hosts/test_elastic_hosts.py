"""Hosts of an elastic job die, leave and come; the others go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from elastic_jobs import PROGRAM, ElasticJob
from network import ADDRESSES, QUICK, Network, free_port, wait_for


def _job(
    network: Network, folder: Path, *arguments: str, **extra: str
) -> ElasticJob:
    """Starts a job on the first host."""
    return ElasticJob(
        folder,
        *arguments,
        environ={**network.environ(), **extra},
        prefix=network.command(0),
    )


def _launcher(network: Network, command: str) -> int:
    """Returns the agent or hvdrun with that command, not its guard or ssh."""
    found = [
        pid
        for pid in network.processes(command)
        if "python" in Path(f"/proc/{pid}/comm").read_text()
    ]
    (pid,) = [pid for pid in found if _parent(pid) not in found]
    return pid


def _agent_pid(network: Network) -> int:
    return _launcher(network, "hvd_keras.run.hosts.agent")


def _parent(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


class _Hvdruns:
    """The hvdruns of an elastic job, one on each host."""

    def __init__(
        self, network: Network, folder: Path, secret: str, nnodes: str
    ) -> None:
        self.network, self.folder = network, folder
        self.extra = {"HVD_SECRET_FILE": secret, **QUICK}
        self.common = [
            "--nnodes", nnodes, "--rdzv-endpoint",
            f"{ADDRESSES[0]}:{free_port()}", "-np", "1", "--min-np", "1",
        ]  # fmt: skip
        self.others: list[subprocess.Popen[str]] = []

    def first(self) -> ElasticJob:
        return _job(
            self.network, self.folder, *self.common, "--node-rank", "0",
            **self.extra,
        )  # fmt: skip

    def start(self, host: int) -> subprocess.Popen[str]:
        command = [sys.executable, PROGRAM, str(self.folder / "end")]
        other = self.network.hvdrun(
            host, *self.common, "--node-rank", str(host), *command,
            **self.extra,
        )  # fmt: skip
        self.others.append(other)
        return other

    def close(self) -> None:
        for other in self.others:
            if other.poll() is None:
                other.kill()
            other.communicate()


def test_a_host_is_lost_with_its_agent(
    network: Network, tmp_path: Path
) -> None:
    options = ["-H", "hosta:2,hostb:2", "--min-np", "1"]
    with _job(network, tmp_path, *options) as job:
        before = job.wait_for_generation(1, 4)
        os.kill(_agent_pid(network), signal.SIGKILL)
        after = job.wait_for_generation(2, 2)
        assert [p.pid for p in after] == [p.pid for p in before[:2]]
        assert job.end() == 0, job.text
        assert "host hostb was lost: the connection ended" in job.text
        wait_for(lambda: not network.processes("elastic_rank.py"), 5)


def test_a_lost_host_of_a_list_is_tried_again(
    network: Network, tmp_path: Path
) -> None:
    options = ["-H", "hosta:1,hostb:2", "--min-np", "1",
               "--blacklist-cooldown", "0.5", "2"]  # fmt: skip
    with _job(network, tmp_path, *options) as job:
        before = job.wait_for_generation(1, 3)
        os.kill(_agent_pid(network), signal.SIGKILL)
        job.wait_for_generation(2, 1)
        after = job.wait_for_size(3, after=2)
        assert "host hostb has come, with 2 slots" in job.text
        assert after[0].pid == before[0].pid
        assert job.end() == 0, job.text
        wait_for(lambda: not network.processes("hvd_keras.run"), 5)


def test_a_rank_of_another_host_is_replaced(
    network: Network, tmp_path: Path
) -> None:
    options = ["-H", "hosta:1,hostb:2", "--min-np", "1", "--restart-delay=0"]
    with _job(network, tmp_path, *options) as job:
        before = job.wait_for_generation(1, 3)
        ranks = network.processes(PROGRAM)
        parent = _agent_pid(network)
        remote = [pid for pid in ranks if _parent(pid) == parent]
        os.kill(min(remote), signal.SIGKILL)
        after = job.wait_for_size(3, after=1)
        assert "restart 1 of 3 on host hostb" in job.text
        assert after[0].pid == before[0].pid
        assert after[2].local_rank in (0, 1)
        assert job.end() == 0, job.text


def test_hosts_come_and_leave(
    network: Network, secret: str, tmp_path: Path
) -> None:
    hvdruns = _Hvdruns(network, tmp_path, secret, "1:2")
    try:
        with hvdruns.first() as job:
            (alone,) = job.wait_for_generation(1, 1)
            other = hvdruns.start(1)
            both = job.wait_for_generation(2, 2)
            assert both[0].pid == alone.pid
            _signal_hvdrun(network, signal.SIGTERM)
            job.wait_for_generation(3, 1)
            assert other.wait(10) == 0
            assert "host hostb leaves: its agent got SIGTERM" in job.text
            assert "lost" not in job.text
            hvdruns.start(1)
            job.wait_for_generation(4, 2)
            assert job.end() == 0, job.text
    finally:
        hvdruns.close()


def _signal_hvdrun(network: Network, number: signal.Signals) -> None:
    """Signals the hvdrun of the second host."""
    os.kill(_launcher(network, "--node-rank 1"), number)


@pytest.mark.parametrize("host", [2, 0])
def test_only_the_majority_goes_on(
    three_hosts: Network, secret: str, tmp_path: Path, host: int
) -> None:
    hvdruns = _Hvdruns(three_hosts, tmp_path, secret, "3:3")
    try:
        for other in (1, 2):
            hvdruns.start(other)
        with hvdruns.first() as job:
            job.wait_for_generation(1, 3)
            three_hosts.cut(host)
            try:
                if host == 0:  # hvdrun is alone
                    assert job.wait() != 0, job.text
                    assert "2 of 3 members fell silent" in job.text
                else:
                    job.wait_for_generation(2, 2)
                    assert job.end() == 0, job.text
            finally:
                three_hosts.mend(host)
    finally:
        hvdruns.close()


def test_hosts_are_discovered(network: Network, tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("hosta:1\n")
    script = tmp_path / "discover"
    script.write_text(f"#!/bin/sh\ncat {hosts}\n")
    script.chmod(0o755)
    options = ["--host-discovery-script", str(script), "--min-np", "1"]
    with _job(network, tmp_path, *options) as job:
        (alone,) = job.wait_for_generation(1, 1)
        hosts.write_text("hosta:1\nhostb:2\n")
        # They may come and leave one by one.
        assert job.wait_for_size(3)[0].pid == alone.pid
        hosts.write_text("hosta:1\n")
        assert job.wait_for_size(1)[0].pid == alone.pid
        assert "host hostb leaves: the discovery script" in job.text
        assert "lost" not in job.text
        wait_for(lambda: not network.processes("hvd_keras.run.hosts.agent"), 5)
        assert job.end() == 0, job.text
