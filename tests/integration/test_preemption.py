"""A job that must stop saves after one step, and goes on when it runs again."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import jobs
import numpy as np
import pytest

_RANK = str(pathlib.Path(__file__).with_name("resume_rank.py"))
_ARGUMENTS = ("--save-freq", "1000")


def _command(directory: pathlib.Path, *options: str) -> list[str]:
    return [
        "-np", "2", "--", sys.executable, _RANK, "--dir", str(directory),
        *options,
    ]  # fmt: skip


def _weights(directory: pathlib.Path) -> list[bytes]:
    return [
        b"".join(value.tobytes() for value in np.load(path).values())
        for path in (directory / "rank.0.npz", directory / "rank.1.npz")
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    directory = tmp_path_factory.mktemp("whole")
    done = jobs.run(*_command(directory), seconds=120)
    assert done.status == 0, done.stderr
    return _weights(directory)


def _preempt(
    directory: pathlib.Path,
    notice: Callable[[subprocess.Popen[str]], None],
    *options: str,
    **extra: str,
) -> str:
    """Runs the job, gives notice in the second epoch; returns what it says."""
    command = _command(directory, "--pause", "0.2", *_ARGUMENTS, *options)
    job = jobs.start(*command, environ=jobs.clean_environ(**extra))
    assert job.stdout is not None
    for line in job.stdout:
        if line == "[0] batch 11\n":
            break
    notice(job)
    started = time.monotonic()
    _, stderr = job.communicate(timeout=60)
    status = int(extra.get("HVD_REQUEUE_EXIT_CODE", "75"))
    assert job.returncode == status, stderr
    assert time.monotonic() - started < 20
    assert os.listdir(directory) == ["backup"]
    assert "preempted at epoch 1, batch " in stderr
    assert "training_state.npz; run it again to go on" in stderr
    assert "failed first" not in stderr
    return stderr


def _goes_on(
    directory: pathlib.Path, undisturbed: list[bytes], *options: str
) -> None:
    command = _command(directory, *_ARGUMENTS, *options)
    done = jobs.run(*command, seconds=120)
    assert done.status == 0, done.stderr
    assert done.lines(0)[-1] == "epochs 2"  # not from the beginning
    assert _weights(directory) == undisturbed


def test_sigterm_to_hvdrun(
    tmp_path: pathlib.Path, undisturbed: list[bytes]
) -> None:
    _preempt(tmp_path, lambda job: job.send_signal(signal.SIGTERM))
    _goes_on(tmp_path, undisturbed)


@pytest.mark.parametrize(
    "more",
    [
        ("--save-freq", "4"),
        pytest.param(("--has-outer",), marks=pytest.mark.thorough),
    ],
    ids=str,
)
def test_ranks_that_train_apart_go_on_apart(
    more: tuple[str, ...], tmp_path: pathlib.Path
) -> None:
    options = ("--local-updates", "7", *more)  # of 10 steps in an epoch
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        folder.mkdir()
    done = jobs.run(*_command(whole, *_ARGUMENTS, *options), seconds=120)
    assert done.status == 0, done.stderr
    _preempt(stopped, lambda job: job.send_signal(signal.SIGTERM), *options)
    _goes_on(stopped, _weights(whole), *options)


def _appears_for_a_second(
    notice: pathlib.Path,
) -> Callable[[subprocess.Popen[str]], None]:
    def give_and_take(job: subprocess.Popen[str]) -> None:
        notice.touch()
        time.sleep(1)
        notice.unlink()

    return give_and_take


@pytest.mark.thorough
def test_a_file_and_a_status(tmp_path: pathlib.Path) -> None:
    notice = tmp_path / "notice"

    _preempt(
        tmp_path,
        _appears_for_a_second(notice),
        HVD_PREEMPTION_FILE=str(notice),
        HVD_PREEMPTION_POLL_SECONDS="0.1",
        HVD_REQUEUE_EXIT_CODE="99",
    )


@pytest.mark.thorough
def test_sigterm_to_one_rank(
    tmp_path: pathlib.Path, undisturbed: list[bytes]
) -> None:
    def tell_rank_1(job: subprocess.Popen[str]) -> None:
        pid = next(
            path.parent.name
            for path in pathlib.Path("/proc").glob("[0-9]*/environ")
            if b"HVD_RANK=1\0" in _read(path)
            and str(tmp_path).encode() in _read(path.with_name("cmdline"))
        )
        os.kill(int(pid), signal.SIGTERM)

    _preempt(tmp_path, tell_rank_1)
    _goes_on(tmp_path, undisturbed)


@pytest.mark.thorough
def test_a_command(tmp_path: pathlib.Path) -> None:
    notice = tmp_path / "notice"

    _preempt(
        tmp_path,
        _appears_for_a_second(notice),
        HVD_PREEMPTION_COMMAND=f"test -e {notice}",
        HVD_PREEMPTION_POLL_SECONDS="0.1",
    )


@pytest.mark.thorough
def test_a_second_sigterm_ends_at_once(tmp_path: pathlib.Path) -> None:
    command = _command(tmp_path, "--pause", "12", *_ARGUMENTS)
    job = jobs.start(*command, environ=jobs.clean_environ())
    assert job.stdout is not None
    for line in job.stdout:
        if line == "[0] batch 1\n":
            break
    job.send_signal(signal.SIGTERM)
    time.sleep(3)  # a busy machine handles the first one late
    started = time.monotonic()
    job.send_signal(signal.SIGTERM)
    _, stderr = job.communicate(timeout=60)
    assert time.monotonic() - started < 6
    assert job.returncode == 143, stderr


def _read(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
