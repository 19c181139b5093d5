"""hvdrun passes signals on, and no process outlives a job."""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from pathlib import Path

import jobs
import pytest


def _start_and_wait(code: str, *options: str) -> subprocess.Popen[str]:
    """Starts two ranks and waits until both have printed `ready`."""
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


@pytest.mark.timed
def test_interrupt_ends_the_job_with_130() -> None:
    job = _start_and_wait(_WAITER)
    job.send_signal(signal.SIGINT)
    outcome = jobs.finish(job)
    assert outcome.status == 128 + signal.SIGINT
    assert outcome.seconds < 5
    assert "KeyboardInterrupt" in outcome.stderr
    assert outcome.stderr.splitlines()[-1] == "hvdrun: interrupted"


def test_sigterm_to_the_launcher_blames_no_rank() -> None:
    job = jobs.start("-np", "2", "--verbose", "sleep", "60")
    assert job.stderr is not None
    while "rank 1 started" not in job.stderr.readline():
        pass
    job.send_signal(signal.SIGTERM)
    outcome = jobs.finish(job)
    assert outcome.status == 128 + signal.SIGTERM
    assert outcome.stderr.splitlines()[-1] == "hvdrun: ended by SIGTERM"


def test_a_failure_before_an_interrupt_is_still_told() -> None:
    code = """
    import os, time
    print("ready", flush=True)
    if os.environ["HVD_RANK"] == "1":
        raise ValueError("odd batch")
    time.sleep(60)
    """
    job = _start_and_wait(textwrap.dedent(code))
    time.sleep(1)
    job.send_signal(signal.SIGINT)
    outcome = jobs.finish(job)
    assert outcome.status == 1
    assert "rank 1 failed first: exit status 1" in outcome.stderr
    assert "hvdrun: interrupted" not in outcome.stderr


def test_interrupt_ends_ranks_that_start_after_it() -> None:
    job = jobs.start("-np", "30", "--verbose", "--grace=20", "sleep", "60")
    assert job.stderr is not None
    while "rank 0 started" not in job.stderr.readline():
        pass
    job.send_signal(signal.SIGINT)
    outcome = jobs.finish(job)
    assert outcome.status == 128 + signal.SIGINT
    assert outcome.seconds < 10


@pytest.mark.timed
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


def _start_with_children(
    environ: dict[str, str] | None = None,
) -> tuple[subprocess.Popen[str], list[int]]:
    rank = jobs.python(_WITH_CHILD)
    job = jobs.start("-np", "2", "--", *rank, environ=environ)
    assert job.stdout is not None
    children = [int(job.stdout.readline().split()[-1]) for _ in range(2)]
    pids = [*jobs.ranks_of(job.pid), *children]
    assert len(pids) == 4
    return job, pids


def _check_nothing_left(pids: list[int]) -> None:
    jobs.wait_for(lambda: not any(map(jobs.is_alive, pids)), seconds=3)


def test_no_orphan_when_the_launcher_is_killed(tmp_path: Path) -> None:
    environ = jobs.clean_environ() | {"TMPDIR": str(tmp_path)}
    job, pids = _start_with_children(environ)
    job.kill()
    _check_nothing_left(pids)
    jobs.finish(job)
    assert not list(tmp_path.glob("hvd-*"))


def test_processes_started_by_a_rank_end_with_the_job() -> None:
    job, pids = _start_with_children()
    os.kill(pids[0], signal.SIGKILL)
    time.sleep(0.3)
    job.send_signal(signal.SIGTERM)
    outcome = jobs.finish(job)
    assert outcome.status == 128 + signal.SIGKILL
    assert outcome.seconds < 8
    _check_nothing_left(pids)


def test_a_child_that_holds_the_output_open_does_not_delay_the_end() -> None:
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


def test_job_goes_on_without_its_guard() -> None:
    code = "import time; print('up', flush=True); time.sleep(1.5)"
    job = jobs.start("-np", "2", "--", *jobs.python(code))
    jobs.wait_for(lambda: len(jobs.ranks_of(job.pid)) == 2)
    path = Path(f"/proc/{job.pid}/task/{job.pid}/children")
    children = {int(pid) for pid in path.read_text().split()}
    (guard,) = children - set(jobs.ranks_of(job.pid))
    os.kill(guard, signal.SIGKILL)
    done = jobs.finish(job)
    assert done.status == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[0] up", "[1] up"]
