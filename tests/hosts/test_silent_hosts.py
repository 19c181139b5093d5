"""Hosts that lose each other, or whose leader stops, without a word."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from lost_peers import Job, running
from network import QUICK, Network, wait_for

_SILENT = "is silent: no heartbeat for 1 s (HVD_HEARTBEAT_TIMEOUT)"


def _texts(job: Job) -> list[str]:
    """What all ranks have raised."""
    found = []
    for rank in range(job.size):
        failure = job.notes(rank)["fails"]
        assert failure["error"] == "PeerLostError", failure
        found.append(str(failure["text"]))
    return found


@pytest.mark.parametrize("way", ["nnodes", "plain"])
def test_both_sides_name_the_silent_host(
    network: Network, tmp_path: Path, way: str
) -> None:
    with running(network, tmp_path, way=way, **QUICK) as job:
        job.wait_for("works")
        cut_at = time.time()  # `ip` may end long after the cut
        network.cut()
        try:
            ends = job.finish()
            assert 0.9 < time.time() - cut_at < 8
        finally:
            network.mend()
        assert all(status != 0 for status, _ in ends)
        first, second, third, fourth = _texts(job)
        for text in (first, second):
            assert f"host hostb (ranks 2, 3) {_SILENT}" in text
            assert "This side holds 2 of 4 ranks" in text
            assert "ends and writes nothing" not in text
        for text in (third, fourth):
            assert f"host hosta (ranks 0, 1) {_SILENT}" in text
            assert (
                "This side holds 2 of 4 ranks, so it ends and writes nothing"
            ) in text
        wait_for(job.is_gone, 5)


def test_only_the_majority_may_go_on(
    three_hosts: Network, tmp_path: Path
) -> None:
    with running(three_hosts, tmp_path, layout=(1, 1, 1), **QUICK) as job:
        job.wait_for("works")
        three_hosts.cut(0)
        try:
            job.finish()
        finally:
            three_hosts.mend(0)
        first, second, third = _texts(job)
        # Rank 0 has lost both others; they lost the host they speak through.
        for text in (first, second, third):
            assert "holds 1 of 3 ranks, so it ends and writes nothing" in text
        wait_for(job.is_gone, 5)


@pytest.mark.thorough
def test_the_majority_knows_that_it_is(
    three_hosts: Network, tmp_path: Path
) -> None:
    with running(three_hosts, tmp_path, layout=(1, 1, 1), **QUICK) as job:
        job.wait_for("works")
        three_hosts.cut(2)
        try:
            job.finish()
        finally:
            three_hosts.mend(2)
        first, second, third = _texts(job)
        for text in (first, second):
            assert f"host hostc (rank 2) {_SILENT}" in text
            assert text.endswith("This side holds 2 of 3 ranks")
        assert "holds 1 of 3 ranks, so it ends and writes nothing" in third
        wait_for(job.is_gone, 5)


@pytest.mark.parametrize("host", [0, 1])
def test_a_leader_that_hangs_is_named(
    network: Network, tmp_path: Path, host: int
) -> None:
    with running(network, tmp_path, **QUICK) as job:
        job.wait_for("works")
        leader = job.first_rank(host)
        pid = job.ranks()[leader]
        os.kill(pid, signal.SIGSTOP)
        others = [rank for rank in range(4) if rank != leader]
        wait_for(lambda: all("fails" in job.notes(r) for r in others), 8)
        os.kill(pid, signal.SIGCONT)
        job.finish()
        name = "host hosta (ranks 0, 1)" if host == 0 else (
            "host hostb (ranks 2, 3)"
        )  # fmt: skip
        for rank in others:
            text = str(job.notes(rank)["fails"]["text"])
            if rank in job.ranks_of(host):
                assert f"rank {leader} (host " in text
                assert "has stopped: no heartbeat for 1 s" in text
            else:
                assert f"{name} {_SILENT}" in text
        wait_for(job.is_gone, 5)


def test_a_silent_host_is_warned_of_before_it_is_lost(
    network: Network, tmp_path: Path
) -> None:
    patient = {
        "HVD_HEARTBEAT_SECONDS": "0.2",
        "HVD_HEARTBEAT_TIMEOUT": "4",
        "HVD_STALL_CHECK_TIME_SECONDS": "1",
    }
    with running(network, tmp_path, **patient) as job:
        job.wait_for("works")
        network.cut()
        try:
            (_, text), *_ = job.finish()
        finally:
            network.mend()
        assert "warning: host hostb (ranks 2, 3) is silent" in text
        assert "; rank 2 (host hostb, pid " in text
        wait_for(job.is_gone, 5)
