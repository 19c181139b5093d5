"""A rank of a job whose rank 1 does something else than the others."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np

import hvd_keras as hvd
from hvd_keras import _native


def reduce(name: str) -> None:
    _native.core().allreduce(name, [np.ones(4, np.float32)], 1)


def look_at_all(folder: pathlib.Path) -> None:
    """Has all ranks write, while rank 0 waits in a collective."""
    time.sleep(0.3)
    pids = map(int, folder.joinpath("pids").read_text().split())
    for pid in pids:
        os.kill(pid, signal.SIGUSR2)
    deadline = time.monotonic() + 10
    files = [folder / f"flight_rank_{rank}.jsonl" for rank in range(2)]
    while not all(file.exists() for file in files):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def work(depth: int) -> int:
    return work(depth - 1) + 1 if depth else 0


def is_asked_while_it_works() -> None:
    """Is asked 300 times, while four threads call and return all the time."""
    ask = (
        "import os, signal, sys, time\n"
        "for _ in range(300):\n"
        "    os.kill(int(sys.argv[1]), signal.SIGUSR2)\n"
        "    time.sleep(0.005)\n"
    )
    asker = subprocess.Popen(
        [sys.executable, "-S", "-c", ask, str(os.getpid())]
    )

    def work_on() -> None:
        while asker.poll() is None:
            work(80)

    for _ in range(3):
        threading.Thread(target=work_on).start()
    work_on()


def main(what: str) -> None:
    hvd.init()
    if what == "work":
        is_asked_while_it_works()
        return
    folder = pathlib.Path(os.environ["HVD_FLIGHT_RECORD_DIR"])
    pids = hvd.allgather_object(os.getpid())
    reduce("first")
    if hvd.rank() == 1:
        if what == "death":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "exception":
            raise ValueError("a user's mistake")
        folder.joinpath("pids").write_text(" ".join(map(str, pids)))
        look_at_all(folder)
    reduce("second")
    hvd.shutdown()


main(sys.argv[1])
