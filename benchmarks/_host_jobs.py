"""Jobs over hosts that are namespaces of this machine."""

from __future__ import annotations

import json
import pathlib
import sys
import types
from collections.abc import Mapping
from typing import Any

from absl import app

HERE = pathlib.Path(__file__).parent
sys.path.append(str(HERE.parent / "tests" / "hosts"))
from clean_environ import PACKAGE_PARENT  # noqa: E402
from network import ADDRESSES, Network, finish, free_port  # noqa: E402

SECONDS = 3000


def run(
    network: Network,
    ranks_a_host: int,
    *command: str,
    num_hosts: int | None = None,
    before: str = "true",
    settings: Mapping[str, str] = types.MappingProxyType({}),
) -> str:
    """Returns what a job of Python prints.

    Args:
        network: The hosts.
        ranks_a_host: Its ranks on each.
        *command: Arguments of Python.
        num_hosts: It has ranks on these first ones; None: on all.
        before: A command of the shell for each host, whose number is `$0`.
        settings: Environment variables.
    """
    num_hosts = num_hosts or network.num_hosts
    secret = network.folder / "secret"
    secret.write_text("5a" * 32)
    secret.chmod(0o600)
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    jobs = [
        network.start(
            host, "sh", "-c", f'{before} && exec "$@"', str(host),
            sys.executable, "-m", "hvd_keras.run", f"--nnodes={num_hosts}",
            f"--node-rank={host}", "--rdzv-endpoint", endpoint,
            "-np", str(ranks_a_host), "--", sys.executable, *command,
            HVD_SECRET_FILE=str(secret),
            PYTHONPATH=PACKAGE_PARENT,  # with scikit-learn
            **settings,
        )
        for host in range(num_hosts)
    ]  # fmt: skip
    ends = [finish(job, SECONDS) for job in jobs]
    if any(status != 0 for status, _, _ in ends):
        # The first host has the words of all ranks.
        texts = (out + error for _, out, error in ends)
        raise app.UsageError("The job has failed:\n" + "\n".join(texts))
    return ends[0][1]


def json_lines(text: str) -> list[dict[str, Any]]:
    """Returns the JSON lines of what a job prints."""
    # hvdrun puts the rank before a line.
    found = (line.partition("{") for line in text.splitlines())
    return [json.loads(brace + rest) for _, brace, rest in found if brace]
