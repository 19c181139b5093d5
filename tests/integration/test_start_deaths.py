"""A rank that dies in `init()` after its proof ends the start at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import jobs
import pytest

# The rank in VICTIM is killed after it has sent its proof. Others say how
# long after that they have failed, and why.
_CODE = """
import os, signal, time
import hvd_keras as hvd
from hvd_keras._rendezvous.client import Rendezvous
rank = int(os.environ.get("HVD_RANK") or os.environ["RANK"])
died = os.environ["DIED"]
send = Rendezvous._send
def send_and_die(self, data):
    send(self, data)
    open(died, "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
if rank == int(os.environ["VICTIM"]):
    Rendezvous._send = send_and_die
if rank == int(os.environ["LATE"]):
    while not os.path.exists(died):
        time.sleep(0.01)
    time.sleep(0.3)
called = time.time()
try:
    hvd.init()
except hvd.PeerLostError as error:
    since = max(called, os.stat(died).st_mtime)
    print(f"{time.time() - since < 1} {error}", flush=True)
    raise SystemExit(1)
"""


@pytest.mark.timed
@pytest.mark.parametrize("victim", [0, 1])
def test_death_after_the_proof_is_blamed_by_hvdrun(
    victim: int, tmp_path: Path
) -> None:
    job = jobs.run_python(
        3,
        _CODE,
        DIED=str(tmp_path / "died"),
        VICTIM=str(victim),
        LATE="2",
    )
    assert job.status == 128 + signal.SIGKILL, job.stderr
    assert f"rank {victim} failed first: SIGKILL" in job.stderr
    for rank in {0, 1, 2} - {victim}:
        (line,) = job.lines(rank)
        assert line.startswith(f"True Rank {victim} "), line


@pytest.mark.timed
@pytest.mark.parametrize("victim", [0, 1])
def test_death_after_the_proof_is_known_at_once_without_hvdrun(
    victim: int, tmp_path: Path
) -> None:
    ranks = []
    for rank in range(3):
        environ = jobs.clean_environ(
            RANK=str(rank),
            WORLD_SIZE="3",
            LOCAL_RANK=str(rank),
            LOCAL_WORLD_SIZE="3",
            MASTER_ADDR="localhost",
            MASTER_PORT=str(os.getpid()),
            XDG_RUNTIME_DIR=str(tmp_path),
            HVD_START_TIMEOUT="20",
            DIED=str(tmp_path / "died"),
            VICTIM=str(victim),
            LATE="2",
        )
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-c", _CODE],
                env=environ,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    for rank, process in enumerate(ranks):
        output, _ = process.communicate(timeout=30)
        if rank == victim:
            assert process.returncode == -signal.SIGKILL
        else:
            assert process.returncode == 1
            assert output.startswith(f"True Rank {victim} "), output
    assert not [p for p in tmp_path.rglob("*") if p.is_socket()]
