"""NCCL goes across hosts by itself, here on fake GPUs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from network import ADDRESSES, ROOT, Network, finish, free_port
from test_gpu_suite import built_fake

GPU = Path(ROOT) / "tests" / "gpu"


@pytest.mark.thorough
def test_collectives_of_gpus_on_two_hosts(
    network: Network, secret: str, tmp_path: Path
) -> None:
    fake = built_fake(tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += [f"--confcutdir={GPU}", str(GPU)]
    environ = {
        "HVD_SECRET_FILE": secret,
        "HVD_INTERFACE": "eth0",
        "HVD_CUDART_LIBRARY": fake,
        "HVD_NCCL_LIBRARY": fake,
        "PYTHONPATH": os.pathsep.join([ROOT, str(GPU)]),
        "TEST_GPU": "fake",
    }
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    jobs = [
        network.hvdrun(
            host, "--nnodes", "2", "--node-rank", str(host),
            "--rdzv-endpoint", endpoint, "-np", "2", "--", *command, **environ,
        )
        for host in (0, 1)
    ]  # fmt: skip
    status, stdout, stderr = finish(jobs[0], 120)
    assert status == 0, stdout + stderr
    assert finish(jobs[1])[0] == 0
    assert " skipped" not in stdout
