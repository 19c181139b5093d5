"""Runs cases of the fault set, and compares verdicts with the truth."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from clean_environ import clean_environ
from network import Network, free_port
from two_hosts import ADDRESSES

from faults import cases
from faults.cases import Case
from hvd_keras._observe import command
from hvd_keras._observe.verdict import Cause

# As a user would set them who is in a hurry.
SETTINGS = {
    "HVD_STALL_CHECK_TIME_SECONDS": "0.5",
    "HVD_STALL_SHUTDOWN_TIME_SECONDS": "1.5",
    "HVD_LOG_LEVEL": "warning",
}
# Until somebody asks a job that goes on.
_SURVEY_SECONDS = 2.0
_LONGEST_SECONDS = 60.0
_RATES = ("50mbit", "100mbit", "200mbit")
_VERDICT = "hvdrun: verdict: "
_NO_VERDICT = "hvdrun: no rank is at fault"
DEADLINES = {Cause.DEAD: 1.0}
DEADLINE = 30.0


@dataclasses.dataclass
class Result:
    """What came of a case."""

    case: Case
    line: tuple[str, int] | None  # the truth
    verdict: dict[str, Any]
    seconds: float  # from the fault until it was told
    output: str = ""

    @property
    def is_right(self) -> bool:
        """Whether rank and cause are right."""
        return (
            self.verdict.get("rank") == self.case.rank
            and self.verdict.get("cause") == self.case.cause.value
        )

    @property
    def has_right_line(self) -> bool:
        """Whether the line is right, or there is none to name."""
        if self.line is None:
            return True
        file = os.path.basename(self.verdict.get("file") or "")
        return (file, self.verdict.get("line")) == self.line

    @property
    def is_in_time(self) -> bool:
        """Whether it was told soon enough."""
        return self.seconds <= DEADLINES.get(self.case.cause, DEADLINE)


class _Told:
    """Reads what hvdrun prints, and notes when it tells a verdict."""

    def __init__(self, job: subprocess.Popen[str]) -> None:
        self.at: float | None = None
        self.has_answered = False
        self.verdict: dict[str, Any] = {}  # while the job ran
        self.text = ""
        self._job = job
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self._job.stderr is not None
        for line in self._job.stderr:
            self.text += line
            self.has_answered |= line.startswith((_VERDICT, _NO_VERDICT))
            if line.startswith(_VERDICT):
                self.at = self.at or time.time()

    def join(self) -> None:
        self._thread.join()


def run(case: Case, folder: Path, network: Network | None = None) -> Result:
    """Runs a case in an empty folder.

    Args:
        case: The case.
        folder: Where its program and what it leaves go.
        network: Hosts, for a slow link.
    """
    line = cases.write(case, folder)
    if case.cause == Cause.SLOW_LINK:
        assert network is not None
        told = _run_on_hosts(case, folder, network)
    else:
        told = _run_here(case, folder)
    began = _time_in(folder / "fault") or _time_in(folder / "ready") or 0
    return Result(
        case,
        line,
        told.verdict or _verdict(folder / "records"),
        (told.at or float("inf")) - began,
        told.text,
    )


def _run_here(case: Case, folder: Path) -> _Told:
    launch = [sys.executable, "-m", "hvd_keras.run", "--grace", "1"]
    launch += ["-np", str(case.num_ranks), sys.executable, "train.py"]
    job = subprocess.Popen(
        launch,
        cwd=folder,
        env=_environ(folder),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    told = _Told(job)
    try:
        if case.is_survey:
            _wait_for_file(folder / "ready", job)
            time.sleep(_SURVEY_SECONDS)
            job.send_signal(signal.SIGUSR2)
            _wait(lambda: told.has_answered, job)
            told.verdict = _verdict(folder / "records")
            job.terminate()
        elif case.stops_from_outside:
            _wait_for_file(folder / "ready", job)
            pid = _pid_of(case.rank, folder)
            (folder / "fault").write_text(str(time.time()))
            os.kill(pid, signal.SIGSTOP)
        job.wait(_LONGEST_SECONDS)
    finally:
        job.kill()
        job.wait()
        told.join()
    return told


def _run_on_hosts(case: Case, folder: Path, network: Network) -> _Told:
    host = case.rank // 2
    rate = _RATES[case.number % len(_RATES)]
    endpoint = f"{ADDRESSES[0]}:{free_port()}"
    secret = os.urandom(32).hex()
    jobs = []
    with network.slow_link(host, rate):
        for node in range(2):
            command_line = network.command(
                node, "sh", "-c", 'cd "$0" && exec "$@"', str(folder),
                sys.executable, "-m", "hvd_keras.run", "--nnodes", "2",
                "--node-rank", str(node), "--rdzv-endpoint", endpoint,
                "-np", "2", "--grace", "1", sys.executable, "train.py",
            )  # fmt: skip
            jobs.append(
                subprocess.Popen(
                    command_line,
                    env=_environ(folder, node, HVD_SECRET=secret),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE if node == 0 else subprocess.DEVNULL,
                    text=True,
                    errors="replace",
                )
            )
        told = _Told(jobs[0])
        try:
            _wait_for_file(folder / "ready", jobs[0])
            time.sleep(_SURVEY_SECONDS)
            mark = f"--node-rank 0 --rdzv-endpoint {endpoint}"
            # Its guard comes later.
            first = min(network.processes(mark))
            os.kill(first, signal.SIGUSR2)
            _wait(lambda: told.has_answered, jobs[0])
            told.verdict = _verdict(folder / "records")
        finally:
            for job in jobs:
                job.kill()
                job.wait()
            told.join()
    return told


def _environ(folder: Path, node: int = 0, **extra: str) -> dict[str, str]:
    # Each host has files of its own.
    name = "records" if node == 0 else f"records_of_host_{node}"
    own = {"HVD_FLIGHT_RECORD_DIR": str(folder / name)}
    return clean_environ(**SETTINGS, **own, **extra)


def _verdict(records: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", command.__name__, "--json", str(records)],
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout or "null")
    return found if isinstance(found, dict) else {}


def _pid_of(rank: int, folder: Path) -> int:
    path = folder / "records" / f"identity_rank_{rank}.json"
    return int(json.loads(path.read_text())["pid"])


def _time_in(path: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        return float(path.read_text())
    return None


def _wait_for_file(path: Path, job: subprocess.Popen[str]) -> None:
    _wait(lambda: _time_in(path) is not None, job)


def _wait(condition: Any, job: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _LONGEST_SECONDS
    while not condition():
        if job.poll() is not None or time.monotonic() > deadline:
            return
        time.sleep(0.02)


@contextlib.contextmanager
def new_folder() -> Iterator[Path]:
    """Makes a folder for a case and removes it."""
    with tempfile.TemporaryDirectory(prefix="hvd-fault-") as folder:
        yield Path(folder)
