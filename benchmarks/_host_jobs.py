"""Jobs over hosts that are namespaces of this machine."""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

from absl import app

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent / "tests" / "hosts"))
from network import ADDRESSES, Network, finish, free_port  # noqa: E402

SECONDS = 3000


def run(
    network: Network, ranks_a_host: int, *command: str, **settings: str
) -> str:
    """Returns what a job of Python prints that has ranks on all hosts."""
    secret = network.folder / "secret"
    secret.write_text("5a" * 32)
    secret.chmod(0o600)
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    jobs = [
        network.hvdrun(
            host, f"--nnodes={network.num_hosts}", f"--node-rank={host}",
            "--rdzv-endpoint", endpoint, "-np", str(ranks_a_host), "--",
            sys.executable, *command, HVD_SECRET_FILE=str(secret),
            PYTHONPATH=str(HERE.parent),  # with scikit-learn
            **settings,
        )
        for host in range(network.num_hosts)
    ]  # fmt: skip
    for job in jobs[1:] + jobs[:1]:
        status, stdout, stderr = finish(job, SECONDS)
        if status != 0:
            raise app.UsageError(f"The job has failed:\n{stdout}\n{stderr}")
    return stdout


def json_lines(text: str) -> list[dict[str, Any]]:
    """Returns the JSON lines of what a job prints."""
    # hvdrun puts the rank before a line.
    found = (line.partition("{") for line in text.splitlines())
    return [json.loads(brace + rest) for _, brace, rest in found if brace]
