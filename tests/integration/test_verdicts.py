"""hvdrun names the rank at fault, and keeps the records only then."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import sys
import time
from pathlib import Path

import jobs
import pytest

from hvd_keras._observe import command

_HEAD = """
import os, sys, time
import numpy as np
import hvd_keras as hvd
from hvd_keras import _core
hvd.init()

def total(name):
    return _core.allreduce(name, [np.ones(3)], 1)

total("first")
"""
_WAITS = f"""{_HEAD}
if hvd.rank() == 1:
    time.sleep(60)
total("second")
"""
_LINE = _WAITS.splitlines().index("    time.sleep(60)") + 1


def _environ(folder: Path, **extra: str) -> dict[str, str]:
    short = {
        "HVD_STALL_CHECK_TIME_SECONDS": "0.3",
        "HVD_STALL_SHUTDOWN_TIME_SECONDS": "0.6",
    }
    return jobs.clean_environ(TMPDIR=str(folder), **short, **extra)


def _run(folder: Path, *command: str) -> jobs.Outcome:
    launch = ["-np", "2", "--grace", "0.5", "--", *command]
    return jobs.run(*launch, environ=_environ(folder))


def _program(folder: Path, code: str) -> str:
    path = folder / "train.py"
    path.write_text(code)
    return str(path)


@pytest.mark.parametrize(
    ("guard", "text"),
    [
        ("", "all ranks raised JSONDecodeError at {}:2: Expecting value"),
        (
            'if os.environ["HVD_RANK"] == "1": ',
            "rank 1 [(]pid .*[)] raised JSONDecodeError: Expecting.* at {}:2",
        ),
    ],
    ids=["all", "one"],
)
def test_an_error_before_init_has_its_line(
    tmp_path: Path, guard: str, text: str
) -> None:
    code = f"import json, os\n{guard}json.loads('x')\n"
    path = _program(tmp_path, code)
    outcome = _run(tmp_path, sys.executable, path)
    assert outcome.status == 1
    pattern = f"^hvdrun: verdict: {text.format(re.escape(path))}"
    assert re.search(pattern, outcome.stderr, re.M), outcome.stderr
    assert "hvd-doctor" not in outcome.stderr  # there are no records
    assert os.listdir(tmp_path) == ["train.py"]


def test_success_leaves_nothing(tmp_path: Path) -> None:
    assert _run(tmp_path, *jobs.python(_HEAD)).status == 0
    assert not os.listdir(tmp_path)


def test_what_is_no_job_has_no_records(tmp_path: Path) -> None:
    job = _run(tmp_path, "false")
    assert job.status == 1
    assert "verdict" not in job.stderr
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ([], {"HVD_TLS_CERT": "cert.pem"}),
        (["-H", "127.0.0.1:1,host.invalid:1"], {}),
        (["--ssh-command", "false", "-H", "127.0.0.1:1,192.0.2.1:1"], {}),
        (["--min-np", "1"], {"HVD_TLS_KEY": "key.pem"}),
    ],
)
def test_a_refused_start_has_no_records(
    tmp_path: Path, options: list[str], settings: dict[str, str]
) -> None:
    job = jobs.run(
        *["-np", "2", *options, "--", "true"],
        environ=_environ(tmp_path, **settings),
    )
    assert job.status != 0
    assert job.stderr
    assert not list(tmp_path.glob("hvd_flight_*"))


def test_records_of_the_last_ten_jobs_are_kept(tmp_path: Path) -> None:
    old = [tmp_path / f"hvd_flight_{i}" for i in range(12)]
    for age, folder in enumerate(reversed(old)):
        folder.mkdir()
        (folder / "flight_rank_0.jsonl").touch()
        os.utime(folder, (time.time() - age - 1,) * 2)
    other, link = tmp_path / "other", tmp_path / "hvd_flight_link"
    other.mkdir()
    link.symlink_to(other)
    in_use = os.open(old[0], os.O_RDONLY)
    fcntl.flock(in_use, fcntl.LOCK_EX)
    try:
        assert _run(tmp_path, *jobs.python(_HEAD)).status == 0
    finally:
        os.close(in_use)
    assert set(tmp_path.iterdir()) == {*old[3:], old[0], other, link}


def test_records_go_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    job = jobs.start(
        *["-np", "2", "--", *jobs.python(_WAITS)], environ=_environ(tmp_path)
    )
    jobs.wait_for(lambda: list(tmp_path.glob("hvd_flight_*/stacks*")))
    job.kill()
    job.communicate(timeout=10)
    jobs.wait_for(lambda: not os.listdir(tmp_path))


def test_a_rank_under_a_shell_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = _program(tmp_path, _WAITS)
    # The shell, which has no handler for SIGUSR2, waits for Python.
    job = _run(tmp_path, "sh", "-c", f"python3 {program}; exit $?")
    assert "rank 1 (pid " in job.stderr, job.stderr
    assert "never entered 'second', for which others wait since" in job.stderr
    assert f"and has been at {program}:{_LINE} since then" in job.stderr
    (folder,) = tmp_path.glob("hvd_flight_*")
    assert f"see `hvd-doctor {folder}`" in job.stderr
    assert command.main([str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "Cause: slow input." in shown
    assert f"  {program}:{_LINE}" in shown.partition("innermost call")[2]
    rows = [line.split() for line in shown.splitlines()]
    assert any(row[:1] == ["0"] and row[-1] == "second" for row in rows)


def test_a_hang_that_is_interrupted_is_named(tmp_path: Path) -> None:
    job = jobs.start(
        *["-np", "2", "--grace", "0.5", "--", *jobs.python(_WAITS)],
        environ=_environ(tmp_path) | {"HVD_STALL_SHUTDOWN_TIME_SECONDS": "60"},
    )
    jobs.wait_for(lambda: list(tmp_path.glob("hvd_flight_*/stacks*")))
    time.sleep(2.5)
    job.send_signal(signal.SIGINT)
    outcome = jobs.finish(job)
    assert "verdict: rank 1 (pid " in outcome.stderr, outcome.stderr
    assert "never entered 'second'" in outcome.stderr


def test_a_job_that_goes_on_can_be_asked(tmp_path: Path) -> None:
    code = f"{_HEAD}\nfor step in range(40):\n    total('x')\n"
    code += "    time.sleep(0.1 * hvd.rank())\n"
    job = jobs.start(
        *["-np", "2", "--", *jobs.python(code)], environ=_environ(tmp_path)
    )
    jobs.wait_for(lambda: list(tmp_path.glob("hvd_flight_*/stacks_rank_1*")))
    time.sleep(1.5)
    job.send_signal(signal.SIGUSR2)
    outcome = jobs.finish(job)
    assert outcome.status == 0, outcome.stderr
    assert "verdict: rank 1 (pid " in outcome.stderr
    assert "was last in" in outcome.stderr
    assert not os.listdir(tmp_path)


def test_a_call_after_the_end_of_another_rank_is_named(tmp_path: Path) -> None:
    call = "    _core.allreduce('extra', [np.ones(3)], 1)"
    code = f"{_HEAD}if hvd.rank() == 0:\n{call}\n"
    line = code.splitlines().index(call) + 1
    program = _program(tmp_path, code)
    job = _run(tmp_path, "python3", program)
    assert job.status == 1
    lines = [line for line in job.stderr.splitlines() if "verdict: " in line]
    assert len(lines) == 1, job.stderr
    said = (
        "ended its script while rank 0 waited in allreduce 'extra' at "
        f"{program}:{line}: make that call on all ranks, equally often, not "
        "under `if hvd.rank() == 0`; rank 1 finished 'first' at "
    )
    assert "verdict: rank 1 (pid " in lines[0]
    assert said in lines[0]
    assert "left the job: its script ended without this call." in job.stderr


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("status", [0, 3])
def test_the_line_that_has_ended_a_rank_is_named(
    tmp_path: Path, status: int, is_late: bool
) -> None:
    end = f"    sys.exit({status})"
    code = (
        f"import sys\n{_HEAD}if hvd.rank() == 1:\n{end}\n"
        f"time.sleep({0.3 * is_late})\n_core.barrier('x')\n"
    )
    line = code.splitlines().index(end) + 1
    program = _program(tmp_path, code)
    job = _run(tmp_path, "python3", program)
    assert job.status == (status or 1)
    lines = [line for line in job.stderr.splitlines() if "verdict: " in line]
    assert len(lines) == 1, job.stderr
    call = f"called `sys.exit({status})` at {program}:{line}"
    assert f"{call} while rank 0 waited in barrier 'x' at " in lines[0]
    assert f"left the job: it {call}; its script ended" in job.stderr


def test_a_script_that_ended_before_the_call_is_told_from_a_killed_one(
    tmp_path: Path,
) -> None:
    code = (
        f"{_HEAD}if hvd.rank() == 0:\n    time.sleep(0.3)\n"
        "    _core.barrier('x')\nelif len(sys.argv) > 1:\n    os._exit(0)\n"
    )
    program = _program(tmp_path, f"import os\nimport sys\n{code}")
    ended = _run(tmp_path, "python3", program)
    assert "ended its script while rank 0 waited in barrier 'x'" in ended.stderr
    killed = _run(tmp_path, "python3", program, "killed")
    assert "left its script without ending it" in killed.stderr


def test_an_error_of_all_ranks_blames_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = f"""{_HEAD}
for step in range(6):
    time.sleep(0.01 * hvd.rank())
    total("x")
raise hvd.MismatchError("All ranks must have the same plan.")
"""
    job = _run(tmp_path, *jobs.python(code))
    assert job.status == 1
    text = (
        r"all ranks raised MismatchError at <string>:\d+: All ranks must have "
        "the same plan"
    )
    assert re.search(f"hvdrun: verdict: {text}", job.stderr), job.stderr
    assert "all ranks failed: exit status 1; the job took" in job.stderr
    assert "was last in" not in job.stderr
    assert "failed first" not in job.stderr
    (folder,) = tmp_path.glob("hvd_flight_*")
    assert command.main([str(folder)]) == 0
    assert "Stack of rank 0" in capsys.readouterr().out


def test_ranks_that_leave_no_record_are_judged_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = _run(tmp_path, *jobs.python(f"{_HEAD}\nos._exit(9)"))
    assert job.status == 9
    text = "all ranks exited with code 9"
    assert f"hvdrun: verdict: {text}\n" in job.stderr, job.stderr
    assert "all ranks failed: exit status 9" in job.stderr
    (folder,) = tmp_path.glob("hvd_flight_*")
    assert command.main([str(folder)]) == 0
    assert text in capsys.readouterr().out


def test_all_ranks_may_end_the_script_by_one_call(tmp_path: Path) -> None:
    end = "sys.exit('usage: train.py DATA')"
    program = _program(tmp_path, f"import sys\n{_HEAD}\n{end}\n")
    job = jobs.run(
        *("-np", "2", "--show-ranks", "0", "python3", program),
        environ=_environ(tmp_path),
    )
    assert job.status == 1
    assert f"verdict: all ranks called `{end}` at {program}:" in job.stderr
    assert "the last lines of rank" not in job.stderr


def test_the_doctor_wants_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([str(tmp_path)]) == 2
    assert command.main([str(tmp_path / "missing")]) == 2
    assert "holds no flight records" in capsys.readouterr().err
