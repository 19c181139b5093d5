"""hvdrun: start, output, signals, failures, and nothing left behind."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import jobs
import pytest

# What Keras's progress bar writes for three steps and the end of an epoch.
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


def _ranks_in_environ(extra: str = "") -> str:
    return f"import os; print(os.environ['HVD_RANK']{extra})"


# ---- Environment ----


def test_ranks_get_their_place_and_one_secret() -> None:
    job = jobs.run_python(
        3,
        """
        import os
        names = "RANK SIZE LOCAL_RANK LOCAL_SIZE CROSS_RANK CROSS_SIZE"
        print(*[os.environ["HVD_" + name] for name in names.split()])
        print(os.environ["HVD_SECRET"], os.environ["HVD_RENDEZVOUS"])
        """,
    )
    assert job.status == 0, job.stderr
    secrets = set()
    for rank in range(3):
        place, secret = job.lines(rank)
        assert place == f"{rank} 3 {rank} 3 0 1"
        secrets.add(secret)
    (secret,) = secrets
    assert re.fullmatch(r"[0-9a-f]{64} unix:/.*", secret)
    assert secret[:64] not in job.stderr


def test_tuning_flags_become_settings() -> None:
    job = jobs.run_python(
        1,
        """
        import hvd_keras
        hvd_keras.init()
        from hvd_keras import config
        print(config.current())
        """,
        "--fusion-threshold-mb=2",
        "--cycle-time-ms=1.5",
        "--cache-capacity=9",
        "--stall-check-warning-time-seconds=3",
        "--stall-check-shutdown-time-seconds=4",
        "--start-timeout=5",
        "--log-level=error",
    )
    assert job.status == 0, job.stderr
    (shown,) = job.lines(0)
    for part in (
        "fusion_threshold_bytes=2097152",
        "cycle_time_ms=1.5",
        "cache_capacity=9",
        "stall_warning_seconds=3.0",
        "stall_timeout_seconds=4.0",
        "start_timeout_seconds=5.0",
        "log_level='error'",
    ):
        assert part in shown


# ---- Command lines that cannot be obeyed ----


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["-np", "0", "true"], 2, "`-np` must be in [1, "),
        (["-np", "100000", "true"], 2, "Received: 100000"),
        (["true"], 2, "`-np N` is missing"),
        (["-np", "2"], 2, "command is missing"),
        (["-np", "2", "no-such-command"], 127, "'no-such-command'"),
        (["-np", "2", "/etc/passwd"], 126, "executable"),
        (["-np", "2", "x.py"], 127, "Did you mean: python x.py?"),
        (["-np", "2", "-H", "a:1,b:1", "true"], 2, "not there yet"),
        (["-np", "2", "--hostfile", "h", "true"], 2, "not there yet"),
        (["-np", "2", "--nnodes", "2", "true"], 2, "not there yet"),
        (["-np", "2", "--show-ranks", "2", "true"], 2, "[0, 2)"),
        (["-np", "2", "--grace", "-1", "true"], 2, "`--grace`"),
        (["-np", "2", "--cycle-time-ms", "-1", "true"], 2, "HVD_CYCLE_TIME"),
    ],
)
def test_wrong_command_line_is_a_clear_error(
    arguments: list[str], status: int, text: str
) -> None:
    job = jobs.run(*arguments)
    assert job.status == status
    assert text in job.stderr
    assert "Traceback" not in job.stderr
    assert job.stdout == ""


def test_unknown_setting_is_one_error_before_any_rank_starts() -> None:
    job = jobs.run_python(2, "print('started')", HVD_CYCLE_TIEM="1")
    assert job.status == 2
    assert job.stderr.count("HVD_CYCLE_TIME") == 1
    assert job.stdout == ""


def test_hvdrun_as_a_rank_of_another_job_is_an_error() -> None:
    job = jobs.run_python(
        1,
        "",
        OMPI_COMM_WORLD_RANK="0",
        OMPI_COMM_WORLD_SIZE="2",
        OMPI_COMM_WORLD_LOCAL_RANK="0",
        OMPI_COMM_WORLD_LOCAL_SIZE="2",
    )
    assert job.status == 2
    assert "rank 0 of 2 of Open MPI" in job.stderr


@pytest.mark.parametrize("flag", ["-np", "--np", "-n", "--num-proc",
                                  "--nproc-per-node"])  # fmt: skip
def test_number_of_ranks_has_the_names_of_other_launchers(flag: str) -> None:
    job = jobs.run(flag, "2", "-H", "localhost:2", "echo", "-np", "7")
    assert job.status == 0
    assert sorted(job.stdout.splitlines()) == ["[0] -np 7", "[1] -np 7"]


def test_help_env_prints_the_table() -> None:
    job = jobs.run("--help-env")
    assert job.status == 0
    assert "| `HVD_FUSION_THRESHOLD` |" in job.stdout


def test_check_works_with_parts_missing() -> None:
    # -S: without site-packages there is neither TensorFlow nor Keras.
    done = subprocess.run(
        [sys.executable, "-S", "-m", "hvd_keras.run", "--check"],
        env=jobs.clean_environ(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert re.search(r"^TensorFlow +NOT FOUND", done.stdout, re.MULTILINE)
    assert re.search(r"^Keras +NOT FOUND", done.stdout, re.MULTILINE)
    assert re.search(r"^Python +3\.", done.stdout, re.MULTILINE)
    assert re.search(r"^NCCL ", done.stdout, re.MULTILINE)
    assert re.search(r"^CUDA driver ", done.stdout, re.MULTILINE)
    assert "Traceback" not in done.stderr


# ---- Output ----


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
    job = jobs.run_python(3, _ranks_in_environ(), "--no-tag")
    assert sorted(job.stdout.split()) == ["0", "1", "2"]
    job = jobs.run_python(3, _ranks_in_environ(), "--show-ranks", "0,2")
    assert sorted(job.stdout.splitlines()) == ["[0] 0", "[2] 2"]
    job = jobs.run_python(1, _ranks_in_environ(), "--timestamp")
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


def test_what_a_reader_that_left_does_not_take_is_no_failure(
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
            except OSError:  # the end of a terminal
                break
    assert job.wait(10) == 0
    os.close(controller)
    assert b"\r\x1b[K[0] 1/3 step one" in shown
    assert b"\r\x1b[K[0] 2/3 step two" in shown
    assert b"[0] 3/3 step three\r\n" in shown
    # Rank 1's bar does not come between; it is shown when it is complete.
    assert b"[1] 3/3 step three\r\n" in shown
    assert b"[1] 1/3" not in shown


# ---- Failures ----


def test_first_failure_gives_the_status_and_the_table() -> None:
    job = jobs.run_python(
        3,
        """
        import os, sys, time
        if os.environ["HVD_RANK"] == "1":
            raise ValueError("no such luck")
        if os.environ["HVD_RANK"] == "2":
            time.sleep(0.3)
            sys.exit(5)
        """,
    )
    assert job.status == 1
    assert "rank 1 failed first" in job.stderr
    table = job.table()
    assert table[0][1:] == ["0"]
    assert table[1][1:] == ["1", "ValueError: no such luck"]
    assert table[2][1:] == ["5"]


def test_no_table_without_a_failure() -> None:
    job = jobs.run_python(2, "")
    assert job.status == 0
    assert "rank  pid" not in job.stderr
    assert len(job.stderr.splitlines()) == 1


def test_death_by_signal_is_128_and_the_signal() -> None:
    job = jobs.run_python(
        2,
        """
        import os, signal, time
        if os.environ["HVD_RANK"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
        """,
        "--grace=0.5",
    )
    assert job.status == 128 + signal.SIGKILL
    assert job.seconds < 8
    assert job.table()[0][1] == "SIGKILL"
    assert job.table()[1][1] == "SIGTERM by hvdrun"


def test_others_get_the_grace_time_to_fail_by_themselves() -> None:
    code = """
        import os, sys, time
        if os.environ["HVD_RANK"] == "0":
            sys.exit(3)
        time.sleep(1)
        raise RuntimeError("my own words")
        """
    job = jobs.run_python(2, code, "--grace=15")
    assert job.status == 3
    assert job.seconds < 10
    assert job.table()[1][1:] == ["1", "RuntimeError: my own words"]
    job = jobs.run_python(2, code, "--grace=0")
    assert job.status == 3
    assert "my own words" not in job.stderr


def test_rank_that_ignores_sigterm_is_killed() -> None:
    job = jobs.run_python(
        2,
        """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(0.3)
        if os.environ["HVD_RANK"] == "0":
            sys.exit(3)
        time.sleep(60)
        """,
        "--grace=0.2",
    )
    assert job.status == 3
    assert job.seconds < 10
    assert job.table()[1][1] == "SIGKILL by hvdrun"


def test_rank_that_ends_well_and_early_ends_nothing() -> None:
    job = jobs.run_python(
        2,
        """
        import os, time
        if os.environ["HVD_RANK"] == "0":
            time.sleep(1)
            print("still here")
        """,
        "--grace=0",
        "--verbose",
    )
    assert job.status == 0
    assert job.lines(0) == ["still here"]
    assert re.search(r"rank 1 \(pid \d+\) exited with code 0", job.stderr)


# ---- Signals ----


def _start_and_wait(code: str, *options: str) -> subprocess.Popen[str]:
    """Starts two ranks that print `ready`, and waits for that."""
    job = jobs.start("-np", "2", *options, "--", *jobs.python(code))
    assert job.stdout is not None
    for _ in range(2):
        assert "ready" in job.stdout.readline()
    return job


_WAITER = """
import signal, sys, time
def note(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(0)
for name in ("SIGUSR1", "SIGUSR2", "SIGTERM"):
    signal.signal(getattr(signal, name), note)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def test_signals_are_passed_on() -> None:
    job = _start_and_wait(_WAITER)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        job.send_signal(number)
        time.sleep(0.3)
    job.send_signal(signal.SIGTERM)
    outcome = jobs.finish(job)
    assert outcome.status == 0
    for rank in range(2):
        expected = ["got SIGUSR1", "got SIGUSR2", "got SIGTERM"]
        assert outcome.lines(rank) == expected


def test_interrupt_ends_the_job_with_130() -> None:
    job = _start_and_wait(_WAITER)
    job.send_signal(signal.SIGINT)
    outcome = jobs.finish(job)
    assert outcome.status == 128 + signal.SIGINT
    assert outcome.seconds < 5
    assert "KeyboardInterrupt" in outcome.stderr


def test_second_interrupt_kills() -> None:
    code = _WAITER.replace("import", "import os,", 1).replace(
        "note)", "note)\nsignal.signal(signal.SIGINT, signal.SIG_IGN)", 1
    )
    job = _start_and_wait(code, "--grace=60")
    job.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert job.poll() is None
    job.send_signal(signal.SIGINT)
    outcome = jobs.finish(job)
    assert outcome.status == 128 + signal.SIGKILL
    assert outcome.seconds < 5


# ---- Nothing is left behind ----

_WITH_CHILD = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)"])
print("ready", child.pid, flush=True)
time.sleep(99)
"""


def _start_with_children() -> tuple[subprocess.Popen[str], list[int]]:
    job = jobs.start("-np", "2", "--", *jobs.python(_WITH_CHILD))
    assert job.stdout is not None
    children = [int(job.stdout.readline().split()[-1]) for _ in range(2)]
    pids = [*jobs.ranks_of(job.pid), *children]
    assert len(pids) == 4
    return job, pids


def _check_nothing_left(pids: list[int]) -> None:
    jobs.wait_for(lambda: not any(map(jobs.is_alive, pids)), seconds=3)


def test_no_orphan_when_the_launcher_is_killed() -> None:
    before = set(Path("/tmp").glob("hvd-*"))
    job, pids = _start_with_children()
    job.kill()
    _check_nothing_left(pids)
    jobs.finish(job)
    assert set(Path("/tmp").glob("hvd-*")) <= before


def test_what_a_rank_has_started_ends_with_the_job() -> None:
    job, pids = _start_with_children()
    os.kill(pids[0], signal.SIGKILL)
    time.sleep(0.3)
    job.send_signal(signal.SIGTERM)
    outcome = jobs.finish(job)
    assert outcome.status == 128 + signal.SIGKILL
    assert outcome.seconds < 8
    _check_nothing_left(pids)


def test_output_held_open_by_a_child_does_not_hold_up_the_end() -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '60'])"
    job = jobs.run_python(2, code)
    assert job.status == 0
    assert job.seconds < 8


def test_the_secret_is_on_no_command_line() -> None:
    job = jobs.start("-np", "1", "--", *jobs.python(_WAITER))
    assert job.stdout is not None
    assert "ready" in job.stdout.readline()
    (rank,) = jobs.ranks_of(job.pid)
    environ = Path(f"/proc/{rank}/environ").read_bytes().decode()
    secret = environ.partition("HVD_SECRET=")[2].partition("\0")[0]
    assert len(secret) == 64
    for pid in (job.pid, rank):
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert secret.encode() not in command
    job.send_signal(signal.SIGTERM)
    assert jobs.finish(job).status == 0


def test_sigterm_to_the_launcher_ends_ranks_that_ignore_it() -> None:
    code = """
        import signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        time.sleep(60)
        """
    job = jobs.start("-np", "1", "--grace", "1", "--", *jobs.python(code))
    assert job.stdout is not None
    assert "ready" in job.stdout.readline()
    job.send_signal(signal.SIGTERM)
    outcome = jobs.finish(job)
    assert outcome.status == 128 + signal.SIGKILL
    assert outcome.seconds < 8
