"""Jobs of `chaos.py`: hvdrun on one host, or on each of two."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

_ROOT = Path(__file__).parents[1]
sys.path.append(str(_ROOT / "tests" / "hosts"))
from lost_peers import own_pid  # noqa: E402
from network import ADDRESSES, Network, free_port  # noqa: E402

RANK = str(Path(__file__).with_name("_chaos_rank.py"))
_WIRE = "hvd_run_wire_process"
# A host that falls silent is lost after 0.8 s.
_HEARTBEATS = {"HVD_HEARTBEAT_SECONDS": "0.2", "HVD_HEARTBEAT_TIMEOUT": "0.8"}


class Job:
    """A running job, what its hvdrun has said when, and its processes.

    Args:
        folder: Where ranks and hvdruns write.
        layout: The number of ranks by host.
        arguments: What each rank gets after the folder.
    """

    def __init__(
        self, folder: Path, layout: tuple[int, ...], *arguments: str
    ) -> None:
        self.folder = folder
        self.layout = layout
        self.lines: list[tuple[float, str]] = []
        self._arguments = arguments
        self._network: Network | None = None
        self._environ = {**os.environ, "PYTHONPATH": str(_ROOT)}
        self._options = ["--min-np", "1", "--max-restarts", "100000"]
        if len(layout) > 1:
            self._network = Network(folder, len(layout))
            secret = secrets.token_hex(32)
            self._environ = self._network.environ(
                HVD_SECRET=secret, **_HEARTBEATS
            )
            self._options += ["--nnodes", f"1:{len(layout)}"]
            self._options += [
                "--rdzv-endpoint",
                f"{ADDRESSES[0]}:{free_port()}",
            ]
        self.process = self._start(0)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()
        self._others = {h: self._start(h) for h in range(1, len(layout))}

    def _start(self, host: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "hvd_keras.run", *self._options]
        command += ["-np", str(self.layout[host])]
        if self._network is None:
            command += ["--max-np", str(self.layout[host])]
        else:
            command += ["--node-rank", str(host)]
        command += [sys.executable, RANK, str(self.folder), str(host)]
        command += self._arguments
        if self._network is not None:
            command = self._network.command(host, *command)
        is_first = host == 0
        return subprocess.Popen(
            command,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if is_first else subprocess.DEVNULL,
            text=True,
            errors="replace",
        )

    def _read(self) -> None:
        assert self.process.stderr is not None
        with (self.folder / "hvdrun.log").open("w") as log:
            for line in self.process.stderr:
                self.lines.append((time.time(), line.rstrip()))
                log.write(f"{time.time():.3f} {line}")
                log.flush()

    def restart_hosts(self) -> None:
        """Starts hvdrun again on a host where it has ended."""
        for host, other in self._others.items():
            if other.poll() is not None and self.process.poll() is None:
                self._others[host] = self._start(host)

    def pid(self) -> int:
        """Returns the pid of hvdrun on the first host, as seen from here."""
        if self._network is None:
            return self.process.pid
        return self._network.processes("--node-rank 0")[0]

    def cut(self, seconds: float) -> None:
        """Takes the cable out of the second host for some time."""
        assert self._network is not None
        self._network.cut(1)
        mend = threading.Timer(seconds, self._network.mend, [1])
        mend.start()

    def members(self) -> dict[int, tuple[int, int]]:
        """Returns host and pid of those that train now, by rank.

        The pids are as seen from here.
        """
        newest = -1
        found: dict[int, tuple[int, int, int]] = {}
        for (host, own), pid in self._ranks().items():
            last = _last_line(self.folder / f"rank_{host}_{own}.jsonl")
            if last is not None and last["kind"] != "end":
                entry = (last["membership"], host, pid)
                rank = last["rank"]
                found[rank] = max(found.get(rank, entry), entry)
                newest = max(newest, last["membership"])
        return {r: (h, p) for r, (m, h, p) in found.items() if m == newest}

    def _ranks(self) -> dict[tuple[int, int], int]:
        """Returns the pids of all ranks by host and pid on that host."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_text().split("\0")
                if words[1:3] != [RANK, str(self.folder)]:
                    continue
                pid = int(path.name)
                found[int(words[3]), own_pid(pid)] = pid
            except OSError:
                continue
        return found

    def wish_to_die(self, host: int, pid: int) -> Path:
        """Has a rank die in its next commit; returns a file to remove then."""
        wish = self.folder / f"die_{host}_{own_pid(pid)}"
        wish.touch()
        return wish

    def wires(self) -> list[int]:
        """Returns the pids of the wires."""
        assert self._network is not None
        return self._network.processes(_WIRE)

    def kill_host(self) -> None:
        """Kills hvdrun on the second host; its ranks end with it."""
        assert self._network is not None
        for pid in self._network.processes("--node-rank 1"):
            with contextlib.suppress(ProcessLookupError):  # ended with another
                os.kill(pid, signal.SIGKILL)

    def rows(self) -> list[dict[str, Any]]:
        """Returns all that the ranks have written, in order of time."""
        found = []
        for path in self.folder.glob("rank_*.jsonl"):
            for line in path.read_text().splitlines():
                try:
                    found.append(json.loads(line))
                except ValueError:  # cut off by a kill
                    continue
        return sorted(found, key=lambda row: row.get("time", np.inf))

    def wait(self, seconds: float) -> int:
        """Waits for the end; returns the exit status."""
        try:
            return self.process.wait(seconds)
        finally:
            for process in (self.process, *self._others.values()):
                process.kill()
                process.wait()
            self._thread.join()
            if self._network is not None:
                self._network.close()


def _last_line(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    for line in reversed(path.read_text().splitlines()[-2:]):
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        return found
    return None
