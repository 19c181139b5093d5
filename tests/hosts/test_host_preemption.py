"""A job over hosts that must stop saves on all, and goes on when run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from network import ADDRESSES, Network, finish, free_port

_RANK = Path(__file__).parents[1] / "integration" / "resume_rank.py"


def _start(
    network: Network, directory: Path, *options: str
) -> list[subprocess.Popen[str]]:
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    return [
        network.hvdrun(
            host, "--nnodes", "2", "--node-rank", str(host),
            "--rdzv-endpoint", endpoint, "-np", "1", "--", sys.executable,
            str(_RANK), "--dir", str(directory), *options,
            HVD_SECRET="5a" * 32,
        )
        for host in (1, 0)
    ][::-1]  # fmt: skip


def _weights(directory: Path) -> list[bytes]:
    return [
        b"".join(value.tobytes() for value in np.load(path).values())
        for path in (directory / "rank.0.npz", directory / "rank.1.npz")
    ]


@pytest.mark.thorough
def test_sigterm_to_one_hvdrun(network: Network, tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    for job in _start(network, whole):
        status, _, stderr = finish(job, 120)
        assert status == 0, stderr
    save = ("--save-freq", "1000")
    jobs = _start(network, parts, "--pause", "0.2", *save)
    assert jobs[0].stdout is not None
    for line in jobs[0].stdout:
        if line == "[0] batch 13\n":
            break
    children = Path(f"/proc/{jobs[1].pid}/task/{jobs[1].pid}/children")
    os.kill(int(children.read_text()), signal.SIGTERM)
    status, _, stderr = finish(jobs[0])
    assert status == 75, stderr
    assert "preempted at epoch 1, batch " in stderr
    assert finish(jobs[1])[0] == 75
    for job in _start(network, parts, *save):
        status, stdout, stderr = finish(job, 120)
        assert status == 0, stderr
        assert not stdout or "[0] epochs 2\n" in stdout
    assert _weights(parts) == _weights(whole)
