"""An actor that holds resources of a node, and runs hvdrun's agent there.

Ray starts it in a process of its own. It imports no Ray, so it starts soon.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

_MAX_WORDS_BYTES = 4 << 10


class Holder:
    """Holds what Ray has given it, as long as it lives."""

    def run(
        self,
        command: str,
        configuration: Mapping[str, Any],
        variables: Mapping[str, str],
        num_threads: int,
    ) -> tuple[int, str]:
        """Runs an agent until it ends; it dies with this process.

        Args:
            command: What starts it, for a shell.
            configuration: The agent's standard input, with the secret of the
                job. Nobody else sees it.
            variables: More environment variables.
            num_threads: Cores of each rank.

        Returns:
            Its exit status, and the last that it has said.
        """
        told = {**configuration, "parent": os.getpid()}
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            input=json.dumps(told).encode() + b"\n",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**_environ(num_threads), **variables},
            start_new_session=True,
        )
        words = done.stderr[-_MAX_WORDS_BYTES:].decode("utf-8", "replace")
        return done.returncode, words


def _environ(num_threads: int) -> dict[str, str]:
    """Returns an environment in which `python3` is what this process is."""
    folder = os.path.dirname(sys.executable)
    path = os.environ.get("PATH", os.defpath)
    return {
        **os.environ,
        "PATH": os.pathsep.join([folder, path]),
        # What this actor can import, the ranks can.
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        # Ray has set it to the cores of this actor, which has all ranks.
        "OMP_NUM_THREADS": str(num_threads),
    }
