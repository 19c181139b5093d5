"""Ranks that real launchers start on two hosts meet: `make launchers-check`.

A launcher that is not installed is skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from network import ADDRESSES, ROOT, Network, finish, free_port, python

pytestmark = pytest.mark.thorough

_SECRET = {"HVD_SECRET": "5a" * 32, "HVD_START_TIMEOUT": "30"}
_MEET = """
    import os
    from hvd_keras import _rendezvous
    from hvd_keras.config import Config
    config = Config.from_environ(os.environ)
    found = _rendezvous.detect(os.environ)
    with _rendezvous.join(found, config, 0, print) as meeting:
        values = meeting.exchange(b"%d" % found.rank)
    host = (found.cross_rank, found.cross_size, found.local_rank)
    # In one piece: launchers mix what ranks write at the same time.
    words = ["met:", found.launcher, found.rank, *host, values]
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""
_VALUES = "[b'0', b'1', b'2', b'3']"


def _check(output: str, launcher: str) -> None:
    lines = [one.partition("met: ")[2] for one in output.splitlines()]
    assert sorted(line for line in lines if line) == [
        f"{launcher} {rank} {rank // 2} 2 {rank % 2} {_VALUES}"
        for rank in range(4)
    ]


def _find(name: str) -> str:
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"needs {name} in PATH")
    return path


def _rendezvous() -> dict[str, str]:
    return {**_SECRET, "HVD_RENDEZVOUS": f"tcp:{ADDRESSES[0]}:{free_port()}"}


@pytest.mark.parametrize("has_address", [True, False])
def test_mpich(network: Network, has_address: bool) -> None:
    hosts = ",".join(f"{address}:2" for address in ADDRESSES[:2])
    # Hydra's pipe can carry address and secret as well.
    extra = _rendezvous() if has_address else {"HVD_INTERFACE": "eth0"}
    job = network.start(
        0, _find("mpiexec.hydra"), "-launcher", "ssh", "-localhost",
        ADDRESSES[0], "-hosts", hosts, "-genvlist",
        ",".join([*extra, "PYTHONPATH"]), "-n", "4", *python(_MEET), **extra,
    )  # fmt: skip
    status, stdout, stderr = finish(job, 60)
    assert status == 0, stderr
    _check(stdout, "MPICH or Intel MPI")


def test_open_mpi(network: Network) -> None:
    hosts = ",".join(f"{address}:2" for address in ADDRESSES[:2])
    extra = _rendezvous()
    names = [part for name in (*extra, "PYTHONPATH") for part in ("-x", name)]
    prterun = Path(_find("prterun"))
    job = network.start(
        0, str(prterun.with_name("mpiexec")), "--allow-run-as-root",
        "--prtemca", "plm_ssh_agent", "ssh", "--prtemca", "prte_if_include",
        f"{ADDRESSES[0]}/24", "--host", hosts, *names, "-n", "4",
        *python(_MEET), **extra,
    )  # fmt: skip
    status, stdout, stderr = finish(job, 60)
    assert status == 0, stderr
    _check(stdout, "Open MPI")


def test_torchrun(network: Network, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "meet.py"
    program.write_text(python(_MEET)[-1])
    port = str(free_port())
    jobs = [
        network.start(
            host, sys.executable, "-m", "torch.distributed.run", "--nnodes=2",
            f"--node-rank={host}", "--nproc-per-node=2",
            f"--master-addr={ADDRESSES[0]}", f"--master-port={port}",
            str(program), **_SECRET,
        )
        for host in (0, 1)
    ]  # fmt: skip
    outputs = []
    for job in jobs:
        status, stdout, stderr = finish(job, 90)
        assert status == 0, stderr
        outputs.append(stdout)
    _check("".join(outputs), "torchrun")


def _in_slurm(*command: str) -> str:
    _find("slurmctld")
    _find("munged")
    script = str(Path(__file__).with_name("slurm_here.sh"))
    done = subprocess.run(
        [script, *command],
        env={**os.environ, **_SECRET, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_srun(network: Network) -> None:
    run = ["srun", "-N", "2", "--ntasks-per-node=2", *python(_MEET)]
    _check(_in_slurm(*run), "Slurm")


def test_hvdrun_in_an_allocation_of_slurm(network: Network) -> None:
    hvdrun = [sys.executable, "-m", "hvd_keras.run", *python(_MEET)]
    run = ["salloc", "-N", "2", "--ntasks-per-node=2", *hvdrun]
    _check(_in_slurm(*run), "hvdrun")
