"""Runs hvdrun in tests, with a deadline that prints the stacks of ranks."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from clean_environ import clean_environ

# On SIGABRT a rank that hangs prints its stack and ends.
_PREAMBLE = "import faulthandler; faulthandler.enable()\n"

_CORE = """
import os, sys, threading, time
import numpy as np
import hvd_keras as hvd
from hvd_keras import _core

def total(name, value=1.0):
    return float(_core.allreduce(name, [np.full(3, value)], 1)[0][0])

rank = int(os.environ["HVD_RANK"])
"""


@dataclasses.dataclass
class Outcome:
    """Holds how a job ended."""

    status: int
    stdout: str
    stderr: str
    seconds: float

    def lines(self, rank: int) -> list[str]:
        """Returns what `rank` printed on its standard output."""
        prefix = f"[{rank}] "
        return [
            line.removeprefix(prefix)
            for line in self.stdout.splitlines()
            if line.startswith(prefix)
        ]

    def table(self) -> dict[int, list[str]]:
        """Returns the last table: pid, exit and last error line by rank."""
        _, _, body = self.stderr.partition("rank  pid")
        assert body, self.stderr
        rows = {}
        for line in body.splitlines()[1:]:
            if line.startswith("hvdrun: "):
                break  # what follows the table
            rank, pid, status, *error = re.split(r"\s\s+", line, maxsplit=3)
            rows[int(rank)] = [pid, status, *error]
        return rows


def start(
    *arguments: str, environ: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """Starts hvdrun with the arguments."""
    return subprocess.Popen(
        [sys.executable, "-m", "hvd_keras.run", *arguments],
        env=environ or clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def finish(job: subprocess.Popen[str], seconds: float = 60) -> Outcome:
    """Waits until hvdrun ends; after `seconds` fails the test, with stacks."""
    started = time.monotonic()
    try:
        stdout, stderr = job.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        for pid in ranks_of(job.pid):
            os.kill(pid, signal.SIGABRT)
        time.sleep(1)
        job.kill()
        stdout, stderr = job.communicate(timeout=10)
        raise AssertionError(
            f"no end within {seconds} s:\n{stdout}\n{stderr}"
        ) from None
    elapsed = time.monotonic() - started
    return Outcome(job.returncode, stdout, stderr, elapsed)


def run(
    *arguments: str,
    seconds: float = 60,
    environ: dict[str, str] | None = None,
) -> Outcome:
    """Runs hvdrun with the arguments."""
    return finish(start(*arguments, environ=environ), seconds)


def python(code: str) -> list[str]:
    """Returns the command that runs `code` in a new Python."""
    return [sys.executable, "-c", _PREAMBLE + textwrap.dedent(code)]


def run_python(
    num_ranks: int, code: str, *options: str, seconds: float = 60, **extra: str
) -> Outcome:
    """Runs `code` on each rank of a job."""
    return run(
        "-np",
        str(num_ranks),
        *options,
        "--",
        *python(code),
        seconds=seconds,
        environ=clean_environ(**extra),
    )


def run_core(num_ranks: int, code: str, *options: str) -> Outcome:
    """Runs `code`, which may use `_core`, its `rank`, and `total` to sum."""
    return run_python(num_ranks, _CORE + textwrap.dedent(code), *options)


def ranks_of(launcher: int) -> list[int]:
    """Returns the pids of hvdrun's children that are ranks."""
    path = Path(f"/proc/{launcher}/task/{launcher}/children")
    pids = [int(pid) for pid in path.read_text().split()]
    marks = rb"HVD_(RANK|MEMBER)="
    return [pid for pid in pids if re.search(marks, _environ_of(pid))]


def _environ_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def is_alive(pid: int) -> bool:
    """Returns whether the process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_for(condition: object, seconds: float = 10) -> None:
    """Waits until `condition()` is true; after `seconds` fails the test."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)


def last_words(outcome: Outcome) -> list[str]:
    """Returns what hvdrun has said after the ranks, alike ranks as one."""
    return [
        line.partition(": ")[2]
        for line in outcome.stderr.splitlines()
        if line.startswith("hvdrun: warning of rank")
    ]


def words_of_two(code: str) -> list[str]:
    """Returns what hvdrun says after two ranks have ended well."""
    backend = "jax" if "import jax" in code else "tensorflow"
    outcome = run_python(2, code, KERAS_BACKEND=backend)
    assert outcome.status == 0, outcome.stderr
    return last_words(outcome)
