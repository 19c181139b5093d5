"""The pipe from MPICH's process manager (Hydra) to each rank.

Ranks put values into a store that all of them read; this is version 1 of PMI,
lines of `key=value`. We use it before MPI does, and leave it as MPI expects it:
a value, a barrier, a read.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping

from hvd_keras.exceptions import LaunchError, StalledError

_KEY = "hvd_keras"
_MAX_LINE_BYTES = 4096


def share(
    environ: Mapping[str, str], value: str | None, timeout_seconds: float
) -> str:
    """Gives all ranks the value of rank 0; all of them call this.

    Args:
        environ: Environment variables, usually `os.environ`.
        value: What rank 0 gives, without spaces; None on the others.
        timeout_seconds: How long to wait for the other ranks.

    Returns:
        The value of rank 0.

    Raises:
        LaunchError: The process manager does not understand us.
        StalledError: A rank did not come in time.
    """
    pipe = _Pipe(int(environ["PMI_FD"]), timeout_seconds)
    store = pipe.ask("cmd=get_my_kvsname", "my_kvsname")["kvsname"]
    place = f"kvsname={store} key={_KEY}"
    if value is not None:
        pipe.ask(f"cmd=put {place} value={value}", "put_result")
    pipe.ask("cmd=barrier_in", "barrier_out")
    return pipe.ask(f"cmd=get {place}", "get_result")["value"]


class _Pipe:
    def __init__(self, descriptor: int, timeout_seconds: float) -> None:
        self._descriptor = descriptor
        self._timeout_seconds = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds

    def ask(self, line: str, expected: str) -> dict[str, str]:
        os.write(self._descriptor, line.encode() + b"\n")
        answer = self._read_line()
        found = dict(part.partition("=")[::2] for part in answer.split())
        if found.get("cmd") != expected or found.get("rc", "0") != "0":
            raise LaunchError(
                f"MPICH's process manager must answer {expected!r} on PMI_FD. "
                f"Received: {answer!r}. Set HVD_RENDEZVOUS=tcp:HOST:PORT "
                "instead: the host of rank 0, and a free port there."
            )
        return found

    def _read_line(self) -> str:
        data = b""
        while not data.endswith(b"\n") and len(data) < _MAX_LINE_BYTES:
            left = max(0.0, self._deadline - time.monotonic())
            if not select.select([self._descriptor], [], [], left)[0]:
                raise StalledError(
                    "All ranks must call `init()` within "
                    f"{self._timeout_seconds:g} s (HVD_START_TIMEOUT) of each "
                    "other. Received: no answer of MPICH's process manager."
                )
            part = os.read(self._descriptor, 1)
            if not part:
                break
            data += part
        return data.decode("utf-8", "replace").strip()
