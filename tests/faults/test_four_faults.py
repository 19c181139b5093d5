"""Report, timeline, log and doctor agree on who is at fault, and why."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clean_environ import clean_environ
from network import ADDRESSES, Network, free_port, wait_for

from hvd_keras._observe import command, recording, tracks
from hvd_keras._observe.recording import Recording
from hvd_keras._observe.report import write_report

_RANK = Path(__file__).with_name("four_faults_rank.py")
_SETTINGS = {
    "HVD_STALL_CHECK_TIME_SECONDS": "1",
    "HVD_STALL_SHUTDOWN_TIME_SECONDS": "6",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
pytestmark = pytest.mark.thorough


@pytest.fixture
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    network = Network(tmp_path_factory.mktemp("hosts"))
    yield network
    network.close()


class Job:
    """A job with a fault, that is asked and leaves all it can."""

    def __init__(
        self, fault: str, folder: Path, network: Network | None = None
    ) -> None:
        self.folder = folder
        self._records = folder / "records"
        self._network = network
        rank = [sys.executable, str(_RANK), fault, str(folder)]
        options = ["--grace", "1", "--timeline", str(folder / "timeline")]
        if network is None:
            self._jobs = [self._start(0, None, "-np", "2", *options, *rank)]
            return
        endpoint = f"{ADDRESSES[0]}:{free_port()}"
        secret = os.urandom(32).hex()
        self._jobs = [
            self._start(
                *(node, secret, "--nnodes", "2", "--node-rank", str(node)),
                *("--rdzv-endpoint", endpoint, "-np", "1", *options, *rank),
            )
            for node in range(2)
        ]

    def _start(
        self, node: int, secret: str | None, *arguments: str
    ) -> subprocess.Popen[bytes]:
        command_line = [sys.executable, "-m", "hvd_keras.run", *arguments]
        own = self._records if node == 0 else self.folder / "other_records"
        environ = clean_environ(**_SETTINGS, HVD_FLIGHT_RECORD_DIR=str(own))
        if self._network is not None:
            assert secret is not None
            environ["HVD_SECRET"] = secret
            command_line = self._network.command(node, *command_line)
        with open(self.folder / f"said_{node}", "wb") as said:
            return subprocess.Popen(
                command_line,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def ask(self) -> dict[str, Any]:
        """Asks the running job; returns what the doctor says of it."""
        pid = self._jobs[0].pid
        if self._network is not None:
            pid = min(self._network.processes("--node-rank 0"))
        os.kill(pid, signal.SIGUSR2)
        answer = ("hvdrun: verdict: ", "hvdrun: no rank is at fault")
        wait_for(lambda: any(text in self.said() for text in answer))
        return self.diagnose()

    def diagnose(self) -> dict[str, Any]:
        """Returns what `hvd-doctor --json` says."""
        done = subprocess.run(
            [sys.executable, "-m", command.__name__, "--json", self._records],
            capture_output=True,
            text=True,
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def finish(self) -> str:
        """Waits for the end; returns what hvdrun and the ranks have said."""
        for job in self._jobs:
            job.wait(90)
        return self.said()

    def said(self) -> str:
        """Returns what hvdrun and the ranks have said so far."""
        return (self.folder / "said_0").read_text(errors="replace")

    def close(self) -> None:
        """Ends what is left of it."""
        for job in self._jobs:
            job.kill()
            job.wait()

    def pid_of(self, rank: int) -> int:
        """Returns the process of a rank."""
        path = self._records / f"identity_rank_{rank}.json"
        return int(json.loads(path.read_text())["pid"])

    def timeline(self) -> Recording:
        """Returns the recording."""
        return recording.read(self.folder / "timeline")

    def advice(self) -> dict[str, str]:
        """Returns the texts of the report, by rule."""
        page = self.folder / "report.html"
        write_report(self.folder / "timeline", page)
        data = re.search(r'id="data">(.*?)</script>', page.read_text(), re.S)
        assert data is not None
        found = json.loads(data[1])["advice"]
        return {one["rule"]: one["text"] for one in found}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(fault: str, network: Network | None = None) -> Job:
        jobs.append(Job(fault, tmp_path, network))
        return jobs[-1]

    yield start
    for job in jobs:
        job.close()


def seconds_on(job: Recording, track: str) -> list[float]:
    """How much each rank has on the track of that name, in steps of `fit`.

    The first step is left out: ranks come to it, and compile it, when they can.
    """
    begin = max(rank.steps["end_ns"].min() for rank in job.ranks)
    end = min(rank.steps["end_ns"].max() for rank in job.ranks)
    return [
        sum(
            one.end_ns - one.begin_ns
            for each in rank.tracks
            if each.name == track
            for one in each.slices
            if begin <= one.begin_ns < end
        )
        / 1e9
        for rank in tracks.of(job)
    ]


def test_slow_input(start: Callable[..., Job]) -> None:
    job = start("input")
    wait_for((job.folder / "ready").exists, 60)
    verdict = job.ask()
    said = job.finish()
    assert (verdict["rank"], verdict["cause"]) == (1, "slow input"), verdict
    assert re.search(r"rank 1 came last to \d+% of the \d+ collectives", said)
    advice = job.advice()
    assert advice["late_rank"].startswith("Rank 1 (host ")
    assert "its input is slow" in advice["late_rank"]
    waits = seconds_on(job.timeline(), "wait for the last rank")
    assert waits[0] > 1.0 > 5 * waits[1]


def test_stopped_rank(start: Callable[..., Job]) -> None:
    job = start("stop")
    wait_for((job.folder / "ready").exists, 60)
    pid = job.pid_of(1)
    os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(2.5)
        verdict = job.ask()
    finally:
        os.kill(pid, signal.SIGCONT)
    said = job.finish()
    assert (verdict["rank"], verdict["cause"]) == (1, "stopped"), verdict
    assert re.search(rf"[Rr]ank 1 .*pid {pid}", said)
    assert job.advice()["pause"].startswith(f"Rank 1 (host {_host(job)}, pid")
    waits = longest_waits(job.timeline())
    assert waits[0] > 2.0 > waits[1]


def test_forgotten_collective(start: Callable[..., Job]) -> None:
    job = start("forget")
    said = job.finish()
    verdict = job.diagnose()
    right = (1, "skipped collective")
    assert (verdict["rank"], verdict["cause"]) == right, verdict
    assert re.search(r"; it was in batch \d+ of epoch 1", verdict["sentence"])
    assert re.search(r"mean_loss.*rank 1", said, re.I | re.S), said
    missing = job.advice()["unanswered_call"]
    assert missing.startswith("Rank 1 (host ")
    assert "never called 'mean_loss'" in missing
    first, second = job.timeline().ranks
    open_calls = [
        [
            rank.names[call["name"]]
            for call in rank.calls
            if not call["begun_ns"]
        ]
        for rank in (first, second)
    ]
    assert "mean_loss" in open_calls[0]
    assert "mean_loss" not in open_calls[1]


def test_slow_link(start: Callable[..., Job], network: Network) -> None:
    with network.slow_link(1, "100mbit"):
        job = start("link", network)
        wait_for((job.folder / "ready").exists, 90)
        verdict = job.ask()
        said = job.finish()
    assert (verdict["rank"], verdict["cause"]) == (1, "slow link"), verdict
    assert "host hostb (rank 1) sends slowly: collectives ran for" in said
    advice = job.advice()
    assert advice["slow_network"].startswith(
        "Host hostb (rank 1) sends slowly"
    ), advice
    assert "late_rank" not in advice
    running = seconds_on(job.timeline(), "collectives")
    assert running[1] < 0.9 * running[0]


def _host(job: Job) -> str:
    return job.timeline().ranks[1].host


def longest_waits(job: Recording) -> list[float]:
    """The longest time that each rank waited in one collective, in s."""
    found = []
    for rank in job.ranks:
        calls = rank.calls[rank.calls["ended_ns"] > 0]
        found.append(float(np.max(calls["ended_ns"] - calls["enqueued_ns"])))
    return [one / 1e9 for one in found]
