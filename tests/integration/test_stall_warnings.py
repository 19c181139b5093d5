"""Whoever keeps the others waiting is named before the job fails."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import time

import jobs

_WARNING = {
    "HVD_STALL_CHECK_TIME_SECONDS": "1",
    "HVD_STALL_SHUTDOWN_TIME_SECONDS": "60",
}
_SINCE = r"since \d\d:\d\d:\d\d"
_HEAD = """
import os, signal, time
import numpy as np
import hvd_keras as hvd
from hvd_keras import _core
hvd.init()
large = np.ones(8 << 20, np.float32)

def total(name, array=np.ones(3)):
    return _core.allreduce(name, [array], 1)

def say(text):
    print(text, flush=True)
"""


def _warning(num_ranks: int, stopped: int, code: str) -> tuple[str, int]:
    """Returns what is printed until a warning, and the pid of `stopped`.

    The ranks run until then.
    """
    job = jobs.start(
        "-np",
        str(num_ranks),
        "--grace",
        "0",
        "--",
        *jobs.python(_HEAD + textwrap.dedent(code)),
        environ=jobs.clean_environ(**_WARNING),
    )
    assert job.stdout is not None
    assert job.stderr is not None
    try:
        pid = 0
        while not pid:
            line = job.stdout.readline()
            assert line, job.stderr.read()
            if line.startswith(f"[{stopped}] ready"):
                pid = int(line.split()[-1])
        if "large" in code:
            time.sleep(0.5)
            os.kill(pid, signal.SIGSTOP)
        text = ""
        for line in job.stderr:
            text += line
            if "warning" in line:
                break
        return text, pid
    finally:
        job.terminate()
        job.communicate(timeout=20)


def test_a_rank_that_stops_inside_a_collective() -> None:
    text, pid = _warning(
        3,
        1,
        """
        if hvd.rank() == 1:
            say(f"ready {os.getpid()}")
        while True:
            total("large", large)
        """,
    )
    assert f"rank 1 (pid {pid}) has stopped in the middle of a" in text
    assert re.search(rf"nothing has come from it for 1 s, {_SINCE}", text), text


def test_rank_0_that_stops() -> None:
    text, pid = _warning(
        3,
        0,
        """
        total("first")
        if hvd.rank() == 0:
            say(f"ready {os.getpid()}")
            os.kill(os.getpid(), signal.SIGSTOP)
        total("second")
        """,
    )
    assert f"rank 0 (pid {pid}) does not answer: it has been silent" in text
    assert re.search(_SINCE, text), text


def test_a_rank_that_does_not_come() -> None:
    text, pid = _warning(
        2,
        1,
        """
        if hvd.rank() == 1:
            say(f"ready {os.getpid()}")
            time.sleep(60)
        total("absent")
        """,
    )
    assert "'absent': rank 0 waits, rank 1 has not come for 1 s" in text
    assert re.search(rf"\({_SINCE}; rank 1 is pid {pid}\)", text), text
