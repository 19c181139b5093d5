"""hvdrun shows and keeps what the ranks print."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import jobs

_PRINT_RANK = "import os; print(os.environ['HVD_RANK'])"
# Keras's progress bar writes this for three steps and the end of an epoch.
_PROGRESS_BAR = r"""
import sys, time
def bar(text, previous):
    sys.stdout.write("\b" * previous + "\r" + text)
    sys.stdout.flush()
print("Epoch 1/1")
bar("1/3 step one", 0); time.sleep(0.1)
bar("2/3 step two", 12); time.sleep(0.1)
bar("3/3 step three\n", 12)
print("done")
"""


def test_lines_are_whole_and_carry_the_rank() -> None:
    job = jobs.run_python(
        3,
        """
        import os, sys, time
        for i in range(20):
            for part in ("line ", str(i), " of ", os.environ["HVD_RANK"]):
                sys.stdout.write(part)
                sys.stdout.flush()
            print()
        print("an error", file=sys.stderr)
        sys.stdout.write("no newline")
        """,
    )
    for rank in range(3):
        expected = [f"line {i} of {rank}" for i in range(20)]
        assert job.lines(rank) == [*expected, "no newline"]
        assert f"[{rank}] an error" in job.stderr.splitlines()
    assert len(job.stdout.splitlines()) == 63


def test_progress_bar_is_one_line_where_there_is_no_terminal() -> None:
    job = jobs.run_python(2, _PROGRESS_BAR)
    for rank in range(2):
        assert job.lines(rank) == ["Epoch 1/1", "3/3 step three", "done"]


def test_no_tag_timestamp_and_shown_ranks() -> None:
    job = jobs.run_python(3, _PRINT_RANK, "--no-tag")
    assert sorted(job.stdout.split()) == ["0", "1", "2"]
    job = jobs.run_python(3, _PRINT_RANK, "--show-ranks", "0,2")
    assert sorted(job.stdout.splitlines()) == ["[0] 0", "[2] 2"]
    job = jobs.run_python(1, _PRINT_RANK, "--timestamp")
    pattern = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[0\] 0\n"
    assert re.fullmatch(pattern, job.stdout)


def test_output_dir_gets_every_byte(tmp_path: Path) -> None:
    job = jobs.run_python(
        2,
        """
        import sys
        sys.stdout.buffer.write(b"a\\r\\x08b\\xff\\n\\nc")
        sys.stderr.write("oh")
        """,
        f"--output-dir={tmp_path}/out",
        "--show-ranks=0",
    )
    assert job.status == 0
    for rank in range(2):
        directory = tmp_path / "out" / f"rank.{rank}"
        assert (directory / "stdout").read_bytes() == b"a\r\bb\xff\n\nc"
        assert (directory / "stderr").read_bytes() == b"oh"


def test_much_output_is_not_lost() -> None:
    job = jobs.run_python(
        2, "for i in range(20000): print(i, 'x' * 50)", PYTHONUNBUFFERED=""
    )
    for rank in range(2):
        lines = job.lines(rank)
        assert len(lines) == 20000
        assert lines[-1] == "19999 " + "x" * 50


def test_a_reader_that_leaves_does_not_end_the_job(tmp_path: Path) -> None:
    path = tmp_path / "done"
    code = f"for i in range(20000): print(i)\nopen({str(path)!r}, 'w')"
    job = jobs.start("-np", "1", "--", *jobs.python(code))
    assert job.stdout is not None
    assert job.stdout.readline() == "[0] 0\n"
    job.stdout.close()
    assert job.wait(20) == 0
    assert job.stderr is not None
    job.stderr.close()
    assert path.exists()


def test_output_after_the_reader_has_left_is_no_failure(
    tmp_path: Path,
) -> None:
    gone = tmp_path / "gone"
    code = f"""
import pathlib, time
print("first", flush=True)
while not pathlib.Path({str(gone)!r}).exists():
    time.sleep(0.01)
print("a few bytes", flush=True)
"""
    job = jobs.start("-np", "1", "--", *jobs.python(code))
    assert job.stdout is not None
    assert job.stdout.readline() == "[0] first\n"
    job.stdout.close()
    gone.touch()
    assert job.wait(20) == 0
    assert job.stderr is not None
    job.stderr.close()


def test_progress_bar_of_rank_0_moves_on_a_terminal() -> None:
    controller, terminal = pty.openpty()
    job = subprocess.Popen(
        [sys.executable, "-m", "hvd_keras.run", "-np", "2", "--",
         *jobs.python(_PROGRESS_BAR)],
        env=jobs.clean_environ(NO_COLOR="1"),
        stdout=terminal,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(terminal)
    shown = b""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        if select.select([controller], [], [], 0.5)[0]:
            try:
                shown += os.read(controller, 4096)
            except OSError:  # the terminal is closed
                break
    assert job.wait(10) == 0
    os.close(controller)
    assert b"\r\x1b[K[0] 1/3 step one" in shown
    assert b"\r\x1b[K[0] 2/3 step two" in shown
    assert b"[0] 3/3 step three\r\n" in shown
    # Rank 1's bar is shown when it is complete, not between.
    assert b"[1] 3/3 step three\r\n" in shown
    assert b"[1] 1/3" not in shown
