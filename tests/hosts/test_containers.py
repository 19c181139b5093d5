"""Ranks of one machine that cannot share memory, as in two containers."""

from __future__ import annotations

import shlex
import sys

import pytest
from network import ADDRESSES, Network, finish, free_port, python
from selection import thorough_except

_CODE = """
    import os
    import numpy as np
    import hvd_keras as hvd
    from hvd_keras import _native
    hvd.init()
    (sums,) = _native.core().allreduce("x", [np.arange(3.0)], 1)
    line = f"{hvd.rank()} {hvd.local_rank()} {sums.tolist()}\\n"
    os.write(1, line.encode())  # as one piece
"""
_CONTAINER = ["unshare", "--pid", "--mount-proc", "--ipc", "--fork"]
_CONTAINER += ["--kill-child"]
_USER = ["unshare", "--user", "--map-root-user"]


@pytest.mark.parametrize(
    "address", thorough_except(["127.0.0.1", ADDRESSES[0]], "127.0.0.1")
)
def test_containers_of_one_machine_are_hosts(
    network: Network, address: str
) -> None:
    endpoint = f"{address}:{free_port()}"
    jobs = [
        network.start(
            0, *_CONTAINER, sys.executable, "-m", "hvd_keras.run",
            "--nnodes", "2", "--node-rank", str(index), "-np", "2",
            "--rdzv-endpoint", endpoint, "--", *python(_CODE),
            HVD_SECRET="5a" * 32,
        )
        for index in range(2)
    ]  # fmt: skip
    status, stdout, stderr = finish(jobs[0])
    assert status == 0, stderr
    assert sorted(stdout.splitlines()) == [
        f"[{rank}] {rank} {rank % 2} [0.0, 4.0, 8.0]" for rank in range(4)
    ]
    assert finish(jobs[1])[0] == 0


@pytest.mark.parametrize("inside", [_CONTAINER, _USER], ids=["pid", "user"])
def test_ranks_apart_that_a_launcher_takes_for_one_host(
    network: Network, inside: list[str]
) -> None:
    code = shlex.join(python(_CODE))
    ranks = [f"OMPI_COMM_WORLD_RANK={i} OMPI_COMM_WORLD_LOCAL_RANK={i}"
             for i in range(2)]  # fmt: skip
    job = network.start(
        0, "sh", "-c",
        f"{ranks[0]} {code} & {ranks[1]} {shlex.join(inside)} {code}; wait $!",
        OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_SIZE="2",
        HVD_RENDEZVOUS=f"tcp:127.0.0.1:{free_port()}", HVD_SECRET="5a" * 32,
    )  # fmt: skip
    status, stdout, stderr = finish(job)
    assert status == 0, stderr
    assert sorted(stdout.splitlines()) == [
        f"{rank} {rank} [0.0, 2.0, 4.0]" for rank in range(2)
    ]
