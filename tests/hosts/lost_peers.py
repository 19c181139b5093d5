"""Jobs on several hosts that lose a part, and what their ranks say then."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from network import ADDRESSES, Network, free_port, wait_for
from two_hosts import NAMES

RANK = str(Path(__file__).with_name("lost_peers_rank.py"))
_WIRE = "hvd_run_wire_process"
SECRET = "5a" * 32


@dataclasses.dataclass
class Job:
    """A job whose ranks call collectives until they fail.

    Attributes:
        network: Its hosts.
        layout: The number of ranks by host.
        folder: Where the ranks write what they do, and other files.
        processes: What has been started.
    """

    network: Network
    layout: tuple[int, ...]
    folder: Path
    processes: list[subprocess.Popen[str]]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(self.layout)

    def first_rank(self, host: int) -> int:
        """The leader of a host."""
        return sum(self.layout[:host])

    def ranks_of(self, host: int) -> range:
        """The ranks of a host."""
        first = self.first_rank(host)
        return range(first, first + self.layout[host])

    def notes(self, rank: int) -> dict[str, dict[str, str | float]]:
        """What a rank has noted, by its kind."""
        path = self.folder / f"rank{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return {note["kind"]: note for note in map(json.loads, lines)}

    def wait_for(self, kind: str, seconds: float = 60) -> None:
        """Waits until all ranks have noted that."""
        wait_for(
            lambda: all(kind in self.notes(rank) for rank in range(self.size)),
            seconds,
        )

    def ranks(self) -> dict[int, int]:
        """The pids of the ranks that run, as seen from here."""
        found = {}
        for pid in self.network.processes(RANK):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_text().split("\0")[
                    1:2
                ] != [RANK]:
                    continue
                environ = _environ(pid)
                rank = environ.get("HVD_RANK", environ.get("RANK", ""))
                if rank:
                    found[int(rank)] = pid
        return found

    def wires(self) -> dict[int, int]:
        """The pids of the wires, by host."""
        found = {}
        for pid in self.network.processes(_WIRE):
            with contextlib.suppress(OSError):
                found[int(_environ(pid)["PMI_RANK"])] = pid
        return found

    def finish(self, seconds: float = 30) -> list[tuple[int, str]]:
        """Returns exit status and standard error of each process."""
        ends = []
        deadline = time.monotonic() + seconds
        for process in self.processes:
            left = max(0.1, deadline - time.monotonic())
            _, stderr = process.communicate(timeout=left)
            ends.append((process.returncode, stderr))
        return ends

    def is_gone(self) -> bool:
        """Whether no process and no file is left, but hvdrun's records.

        Those of a host stay if everything on it was killed.
        """
        texts = (RANK, _WIRE, "hvd_keras.run")
        names = [path.name for path in (self.folder / "tmp").iterdir()]
        return not any(map(self.network.processes, texts)) and all(
            name.startswith("hvd_flight_") for name in names
        )

    def kill_all(self) -> None:
        """Ends what is left."""
        for process in self.processes:
            process.kill()
            process.communicate()
        for pid in [*self.ranks().values(), *self.wires().values()]:
            with contextlib.suppress(OSError):
                os.kill(pid, 9)


def _environ(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_text(errors="replace")
    return dict(one.split("=", 1) for one in text.split("\0") if "=" in one)


def own_pid(pid: int) -> int:
    """The pid of a process as it sees itself."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"^NSpid:.*?(\d+)$", status, re.M)
    assert match is not None
    return int(match[1])


@contextlib.contextmanager
def running(
    network: Network,
    folder: Path,
    *,
    way: str = "nnodes",
    layout: tuple[int, ...] = (2, 2),
    **extra: str,
) -> Iterator[Job]:
    """Starts a job; ends what is left of it.

    Args:
        network: Its hosts.
        folder: An empty folder for its files.
        way: "ssh": one hvdrun. "nnodes": one on each host, the first process
            there. "plain": ranks that no hvdrun has started.
        layout: The number of ranks by host.
        extra: More variables.
    """
    (folder / "tmp").mkdir()
    variables = {
        "HVD_SECRET": SECRET,
        "HVD_LOG_LEVEL": "warning",
        "XDG_RUNTIME_DIR": str(folder / "tmp"),
        "TMPDIR": str(folder / "tmp"),
        **extra,
    }
    program = [sys.executable, RANK, str(folder)]
    hvdrun = ["--grace", "3"]
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    if way == "ssh":
        del variables["HVD_SECRET"]
        hosts = ",".join(
            f"{name}:{n}" for name, n in zip(NAMES, layout, strict=False)
        )
        commands = [[*hvdrun, "-H", hosts, "--", *program]]
    else:
        hvdrun += ["--nnodes", str(len(layout)), "--rdzv-endpoint", endpoint]
        commands = [
            [*hvdrun, "--node-rank", str(host), "-np", str(n), "--", *program]
            for host, n in enumerate(layout)
        ]
    if way == "plain":
        processes = [
            network.start(
                host, "sh", "-c", _plain(layout, host, endpoint, program),
                **variables,
            )
            for host in range(len(layout))
        ]  # fmt: skip
    else:
        processes = [
            network.hvdrun(host, *command, **variables)
            for host, command in enumerate(commands)
        ]
    job = Job(network, layout, folder, processes)
    try:
        yield job
    finally:
        job.kill_all()


def _plain(
    layout: tuple[int, ...], host: int, endpoint: str, program: list[str]
) -> str:
    """Returns lines for a shell that start the ranks of a host."""
    address, port = endpoint.split(":")
    lines = []
    for local_rank in range(layout[host]):
        place = {
            "RANK": sum(layout[:host]) + local_rank,
            "WORLD_SIZE": sum(layout),
            "LOCAL_RANK": local_rank,
            "LOCAL_WORLD_SIZE": layout[host],
            "GROUP_RANK": host,
            "GROUP_WORLD_SIZE": len(layout),
            "MASTER_ADDR": address,
            "MASTER_PORT": port,
        }
        words = [f"{name}={value}" for name, value in place.items()]
        lines.append(" ".join([*words, *program, "&"]))
    return "\n".join([*lines, "wait; exit 1"])
