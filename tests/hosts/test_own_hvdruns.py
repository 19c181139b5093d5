"""Each host runs hvdrun: `--nnodes`, PET_* and JOB_COMPLETION_INDEX."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import certificates
import pytest
from network import ADDRESSES, Network, finish, free_port, python

_MEET = """
    import os
    from hvd_keras import _rendezvous
    from hvd_keras.config import Config
    config = Config.from_environ(os.environ)
    topology = _rendezvous.detect(os.environ)
    with _rendezvous.join(topology, config, 0, print) as meeting:
        print(topology.cross_rank, meeting.exchange(b"%d" % topology.rank))
"""


def _start(
    network: Network, secret: str, *commands: list[str], **extra: str
) -> list[subprocess.Popen[str]]:
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    return [
        network.hvdrun(
            host, "--nnodes", "2", "--node-rank", str(host),
            "--rdzv-endpoint", endpoint, *commands[host],
            HVD_SECRET_FILE=secret, **extra,
        )
        for host in (1, 0)
    ][::-1]  # fmt: skip


def test_hosts_may_have_different_numbers_of_ranks(
    network: Network, secret: str
) -> None:
    commands = [["-np", n, "--", *python(_MEET)] for n in ("2", "1")]
    jobs = _start(network, secret, *commands)
    status, stdout, stderr = finish(jobs[0])
    assert status == 0, stderr
    assert sorted(stdout.splitlines()) == [
        "[0] 0 [b'0', b'1', b'2']",
        "[1] 0 [b'0', b'1', b'2']",
        "[2] 1 [b'0', b'1', b'2']",
    ]
    assert finish(jobs[1])[0] == 0


def test_hosts_may_speak_tls(
    network: Network, secret: str, tmp_path: Path
) -> None:
    tls = certificates.make(tmp_path / "tls")
    command = ["-np", "1", "--", *python(_MEET)]
    jobs = _start(network, secret, command, command, **tls)
    status, stdout, stderr = finish(jobs[0])
    assert status == 0, stderr
    assert "[1] 1 [b'0', b'1']" in stdout
    assert finish(jobs[1])[0] == 0


def test_status_is_that_of_the_job_on_all_hosts(
    network: Network, secret: str
) -> None:
    commands = [
        ["-np", "1", "--", *python("import time; time.sleep(60)")],
        ["-np", "1", "--", *python("raise SystemExit(7)")],
    ]
    jobs = _start(
        network, secret, *(["--grace", "0.2", *one] for one in commands)
    )
    status, _, stderr = finish(jobs[0])
    assert status == 7
    assert "rank 1 (host hostb) failed first: exit status 7" in stderr
    assert "rank  host   pid" in stderr
    assert finish(jobs[1])[0] == 7


@pytest.mark.parametrize("family", ["PET", "JOB"])
def test_kubernetes_needs_no_flags(
    network: Network, secret: str, family: str
) -> None:
    port = str(free_port())
    jobs = []
    for host in (0, 1):
        if family == "PET":
            arguments = []
            extra = {
                "PET_NNODES": "2",
                "PET_NPROC_PER_NODE": "1",
                "PET_NODE_RANK": str(host),
                "PET_MASTER_ADDR": ADDRESSES[0],
                "PET_MASTER_PORT": port,
            }
        else:
            endpoint = f"{ADDRESSES[0]}:{port}"
            arguments = ["--nnodes=2", "--rdzv-endpoint", endpoint, "-np", "1"]
            extra = {"JOB_COMPLETION_INDEX": str(host)}
        extra["HVD_SECRET_FILE"] = secret
        command = [*arguments, "--", *python(_MEET)]
        jobs.append(network.hvdrun(host, *command, **extra))
    status, stdout, stderr = finish(jobs[0])
    assert status == 0, stderr
    assert "[1] 1 [b'0', b'1']" in stdout
    assert finish(jobs[1])[0] == 0


def test_without_a_secret_no_host_starts(network: Network) -> None:
    for host in (0, 1):
        job = network.hvdrun(
            host, "--nnodes", "2", "--node-rank", str(host),
            "--rdzv-endpoint", f"{ADDRESSES[0]}:4000", "-np", "1", "true",
        )  # fmt: skip
        status, _, stderr = finish(job)
        assert status == 2
        assert "openssl rand -hex 32" in stderr


def test_another_secret_is_refused(network: Network, secret: str) -> None:
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    job, stranger = (
        network.hvdrun(
            host, "--nnodes", "2", "--node-rank", str(host),
            "--rdzv-endpoint", endpoint, "-np", "1", "true",
            HVD_SECRET=digits, HVD_START_TIMEOUT="2",
        )
        for host, digits in enumerate(["5a" * 32, "5b" * 32])
    )  # fmt: skip
    status, _, stderr = finish(stranger)
    assert status == 2
    assert "HVD_SECRET must be the secret of the job" in stderr
    status, _, stderr = finish(job)
    assert status == 2
    assert "host 1: it did not come within 2 s" in stderr


def test_a_host_that_comes_twice_is_refused(
    network: Network, secret: str
) -> None:
    endpoint = f"{ADDRESSES[0]}:{free_port()}"

    def start(host: int, index: int) -> subprocess.Popen[str]:
        return network.hvdrun(
            host, "--nnodes", "3", "--node-rank", str(index),
            "--rdzv-endpoint", endpoint, "-np", "1", "true",
            HVD_SECRET_FILE=secret,
        )  # fmt: skip

    first = [start(0, 0), start(1, 1)]
    time.sleep(1)
    status, _, stderr = finish(start(1, 1))
    assert status == 1
    assert "Host 1 is there already: hostb" in stderr
    for job in first:
        job.kill()
        finish(job)


def test_a_late_host_is_awaited(network: Network, secret: str) -> None:
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    job = network.hvdrun(
        1, "--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", endpoint,
        "-np", "1", "true", HVD_SECRET_FILE=secret, HVD_START_TIMEOUT="1",
    )  # fmt: skip
    status, _, stderr = finish(job)
    assert status == 2
    assert "--node-rank 0" in stderr


def test_rank_0_hears_of_a_leader_that_dies_before_it_connects(
    network: Network, secret: str
) -> None:
    code = """
        import os, time
        import hvd_keras as hvd
        from hvd_keras._job.hosts import links
        if os.environ["HVD_RANK"] == "1":
            links.connect = lambda *_: os._exit(3)
        try:
            hvd.init()
        except hvd.PeerLostError as error:
            print(error)
    """
    command = ["-np", "1", "--grace", "20", "--", *python(code)]
    jobs = _start(network, secret, command, command)
    status, stdout, stderr = finish(jobs[0], 15)
    assert status == 3, stderr
    # Its connection ends, and its agent says why; either may be heard first.
    went = r"went away during `init\(\)` \(host hostb, pid \d+"
    ended = r"\(host hostb, pid \d+\) exited with code 3 before the job"
    assert re.search(rf"\[0\] Rank 1 ({went}|{ended})", stdout), stdout
    assert finish(jobs[1])[0] == 3
