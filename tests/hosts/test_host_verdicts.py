"""The verdict on a rank of another host comes with its line."""

from __future__ import annotations

import sys
from pathlib import Path

from network import ADDRESSES, Network, finish, free_port

_PROGRAM = """
import time
import numpy as np
import hvd_keras as hvd
from hvd_keras import _native
hvd.init()
core = _native.core()
core.allreduce("first", [np.ones(3)], 1)
if hvd.rank() == 3:
    time.sleep(60)  # the line
core.allreduce("second", [np.ones(3)], 1)
"""


def test_a_rank_of_another_host_is_named(
    network: Network, tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text(_PROGRAM)
    line = [one.rstrip() for one in _PROGRAM.splitlines()].index(
        "    time.sleep(60)  # the line"
    )
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    settings = {
        "HVD_SECRET": "5a" * 32,
        "HVD_STALL_CHECK_TIME_SECONDS": "0.5",
        "HVD_STALL_SHUTDOWN_TIME_SECONDS": "1",
        "TMPDIR": str(tmp_path),
    }
    first, second = (
        network.hvdrun(
            host,
            *["--nnodes", "2", "--node-rank", str(host)],
            *["--rdzv-endpoint", endpoint, "-np", "2", "--grace", "0.5"],
            *[sys.executable, str(program)],
            **settings,
        )
        for host in range(2)
    )
    _, _, told = finish(first)
    finish(second)
    assert "verdict: rank 3 (host hostb, pid " in told, told
    assert "never entered 'second'" in told
    assert f"train.py:{line + 1} since then" in told
    # That of the agent is gone.
    assert len(list(tmp_path.glob("hvd_flight_*"))) == 1
