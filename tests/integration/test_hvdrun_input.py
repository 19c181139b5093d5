"""Rank 0 reads hvdrun's standard input; a program on it goes to all ranks."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from typing import Any

import jobs

_READ = """
import os, sys
data = sys.stdin.read()
print(os.environ["HVD_RANK"], len(data), repr(data[-10:]))
"""


def _hvdrun(
    *arguments: str, **options: Any
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hvd_keras.run", "--no-tag", *arguments],
        env=jobs.clean_environ(),
        capture_output=True,
        text=True,
        timeout=30,
        **options,
    )


def test_program_goes_to_all_ranks() -> None:
    program = "import os, sys; print(os.environ['HVD_RANK'], *sys.argv)\n"
    program += "#" * 200_000  # more than a pipe holds
    for arguments in (["-", "a"], ["-u", "-", "a"]):
        done = _hvdrun("-np", "3", sys.executable, *arguments, input=program)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == ["0 - a", "1 - a", "2 - a"]


def test_data_goes_to_rank_0() -> None:
    data = "some data\n" * 50_000
    done = _hvdrun("-np", "2", "--", *jobs.python(_READ), input=data)
    assert done.returncode == 0, done.stderr
    expected = [f"0 {len(data)} {data[-10:]!r}", "1 0 ''"]
    assert sorted(done.stdout.splitlines()) == expected


def test_what_no_rank_reads_is_left() -> None:
    command = 'read a; "$@" && cat'
    done = subprocess.run(
        ["bash", "-c", command, "bash", sys.executable, "-m", "hvd_keras.run",
         "-np", "2", "true"],
        env=jobs.clean_environ(),
        input="one\ntwo\n",
        capture_output=True,
        text=True,
        timeout=30,
    )  # fmt: skip
    assert done.stdout == "two\n"


def test_writer_learns_that_rank_0_reads_no_more() -> None:
    code = "import os, time; os.close(0); time.sleep(1)"
    done = subprocess.run(
        ["bash", "-c", "set -o pipefail; yes | \"$@\"; "
         "echo ${PIPESTATUS[0]}", "bash", sys.executable, "-m",
         "hvd_keras.run", "-np", "2", "--", *jobs.python(code)],
        env=jobs.clean_environ(),
        capture_output=True,
        text=True,
        timeout=30,
    )  # fmt: skip
    assert done.stdout == "141\n"


def _on_terminal(in_background: bool, *arguments: str) -> str:
    """Runs hvdrun on a terminal where `typed` was typed.

    Returns:
        Its standard output, what is left in the terminal, its exit status.
    """
    script = """
import os, pty, signal, subprocess, sys
in_background = sys.argv[1] == "True"
options = {"preexec_fn": os.setpgrp} if in_background else {}
job = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, **options)
output, _ = job.communicate(timeout=25)
os.set_blocking(0, False)
try:
    left = os.read(0, 100)
except BlockingIOError:
    left = b""
sys.stderr.write(f"{output.decode()!r} {left!r} {job.returncode}")
"""
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        ["setsid", "--ctty", sys.executable, "-c", script,
         str(in_background), sys.executable, "-m", "hvd_keras.run", "--no-tag",
         *arguments],
        env=jobs.clean_environ(),
        stdin=terminal,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        os.close(terminal)
        time.sleep(0.1)
        os.write(controller, b"typed\n")
        _, told = process.communicate(timeout=30)
    os.close(controller)
    return told


def test_terminal_is_read_by_rank_0_of_a_job_in_the_foreground() -> None:
    code = "import os; print(input() if os.environ['HVD_RANK'] == '0' else '')"
    told = _on_terminal(False, "-np", "2", "--", *jobs.python(code))
    assert "typed" in told
    assert told.endswith("b'' 0")


def test_terminal_is_left_alone_by_a_job_in_the_background() -> None:
    told = _on_terminal(True, "-np", "2", "--", *jobs.python(_READ))
    assert told.endswith("b'typed\\n' 0"), told


def test_python_without_a_program_is_refused_on_a_terminal() -> None:
    told = _on_terminal(False, "-np", "2", sys.executable)
    assert "Python must get a program" in told
    assert told.endswith("2")
