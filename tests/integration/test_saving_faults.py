"""Jobs that are killed while they save, meet another job, or a full disk."""

from __future__ import annotations

import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import jobs
import numpy as np
import pytest
from saving_rank import KINDS

from hvd_keras.callbacks._training_state import _read_whole
from hvd_keras.elastic._commit_files import _read
from hvd_keras.saving import _check_whole

_RANK = str(pathlib.Path(__file__).with_name("saving_rank.py"))
# A backup and commits exclude each other.
_ALL = [
    ["backup", "model", "weights", "timeline"],
    ["commits", "model", "timeline"],
]


def command(
    folder: pathlib.Path, kinds: list[str], *options: str
) -> tuple[str, ...]:
    result = folder.with_name(f"{folder.name}.npz")
    places = ["--dir", str(folder), "--result", str(result)]
    program = [sys.executable, _RANK, *places, *options, "--kinds", *kinds]
    return ("-np", "2", "--", *program)


def run(folder: pathlib.Path, kinds: list[str], *options: str) -> jobs.Outcome:
    return jobs.run(*command(folder, kinds, *options), seconds=120)


def wait_for_training(job: subprocess.Popen[str]) -> None:
    assert job.stdout is not None
    for line in job.stdout:
        if "training" in line:
            return
    raise AssertionError(jobs.finish(job).stderr)


def check_files(folder: pathlib.Path) -> int:
    """Checks that each file of a final name is whole; returns their number."""
    readers = {".npz": _read_whole, ".hvd": _read}
    found = [
        path
        for pattern in ("backup/*.npz", "commits/*.hvd", "*.keras", "*.h5")
        for path in folder.glob(pattern)
        if not path.name.startswith(".")
    ]
    for path in found:
        readers.get(path.suffix, _check_whole)(str(path))
    return len(found)


def weights(folder: pathlib.Path) -> list[bytes]:
    with np.load(folder.with_name(f"{folder.name}.npz")) as file:
        return [file[name].tobytes() for name in file.files]


# ---- Killed while saving ----


@pytest.mark.parametrize("kinds", _ALL, ids=lambda kinds: kinds[0])
@pytest.mark.parametrize(
    "num_kills", [1, pytest.param(20, marks=pytest.mark.nightly)]
)
def test_kills_while_saving_leave_whole_files(
    tmp_path: pathlib.Path, kinds: list[str], num_kills: int
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    # Long enough for all kills, as each goes on where the last has ended.
    options = ("--units", "2000", "--epochs", str(4 + 3 * num_kills))
    assert run(whole, kinds, *options).status == 0
    for turn in range(num_kills):
        job = jobs.start(*command(killed, kinds, *options))
        wait_for_training(job)
        time.sleep(random.uniform(0.0, 0.5))
        for pid in jobs.ranks_of(job.pid):
            os.kill(pid, signal.SIGKILL)
        ended = jobs.finish(job, 60)
        assert ended.status != 0, "it was killed too late"
        assert "waiting for its end" not in ended.stderr, ended.stderr
        assert check_files(killed) > 0, turn
    ended = run(killed, kinds, *options)
    assert ended.status == 0, ended.stderr
    assert "waiting for its end" not in ended.stderr
    assert "damaged" not in ended.stderr
    assert weights(killed) == weights(whole)
    left = [*killed.rglob(".partial*"), *killed.rglob(".*.owner")]
    assert not left


# ---- Two jobs at once ----


@pytest.fixture
def first(
    tmp_path: pathlib.Path, request: pytest.FixtureRequest
) -> Iterator[subprocess.Popen[str]]:
    """Runs a job that saves all the time."""
    arguments = command(
        tmp_path, request.param, "--pause", "0.5", "--epochs", "99"
    )
    job = jobs.start("--output-dir", str(tmp_path / "output"), *arguments)
    wait_for_training(job)
    yield job
    if job.poll() is None:
        job.send_signal(signal.SIGTERM)
        jobs.finish(job, 30)


def ids(kinds: list[str]) -> str:
    return "-".join(kinds)


@pytest.mark.parametrize(
    "first",
    [
        ["backup"],
        pytest.param(["commits"], marks=pytest.mark.thorough),
        pytest.param(["model"], marks=pytest.mark.thorough),
        pytest.param(["weights"], marks=pytest.mark.thorough),
    ],
    indirect=True,
    ids=ids,
)
def test_a_second_job_is_refused(
    tmp_path: pathlib.Path,
    first: subprocess.Popen[str],
    request: pytest.FixtureRequest,
) -> None:
    kinds = request.node.callspec.params["first"]
    second = run(tmp_path, kinds)
    assert second.status != 0
    owner = jobs.ranks_of(first.pid)
    (pid,) = re.findall(r"verdict: .*host \S+, pid (\d+), since", second.stderr)
    assert int(pid) in owner
    assert "verdict: rank 0" in second.stderr
    assert "raised FileInUseError" in second.stderr
    assert first.poll() is None, "the first one goes on"
    check_files(tmp_path)
    # The first is killed: the next one needs no wait.
    first.kill()
    first.wait()
    jobs.wait_for(lambda: not any(map(jobs.is_alive, owner)), 20)
    third = run(tmp_path, kinds)
    assert third.status == 0, third.stderr
    assert "waiting for its end" not in third.stderr


@pytest.mark.parametrize("first", [["timeline"]], indirect=True, ids=ids)
def test_hvdrun_does_not_write_where_another_does(
    tmp_path: pathlib.Path, first: subprocess.Popen[str]
) -> None:
    second = jobs.run(
        "-np", "1", "--output-dir", str(tmp_path / "output"), "true", seconds=40
    )
    assert second.status == 2
    assert f"pid {first.pid}, since" in second.stderr
    assert "must be written by one job" in second.stderr


@pytest.mark.thorough
@pytest.mark.parametrize("first", [["timeline"]], indirect=True, ids=ids)
def test_a_second_timeline_is_refused(
    tmp_path: pathlib.Path, first: subprocess.Popen[str]
) -> None:
    second = run(tmp_path, ["timeline"])
    assert second.status != 0
    assert "raised FileInUseError" in second.stderr


# ---- A full disk ----


@pytest.fixture
def full(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields a folder on a small disk that is nearly full."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if subprocess.run(mounting, capture_output=True).returncode != 0:
        pytest.skip("this user may not mount")
    try:
        with open(folder / "fill", "wb") as file:
            file.write(b"\1" * (500 << 10))
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _marked(kind: str) -> object:
    is_enough = kind in ("backup", "model")
    marks = [] if is_enough else [pytest.mark.thorough]
    return pytest.param(kind, marks=marks)


@pytest.mark.parametrize("kind", [*map(_marked, KINDS)])
def test_a_full_disk(full: pathlib.Path, kind: str) -> None:
    ended = run(full, [kind], "--units", "5000", "--epochs", "2")
    assert f"No space left on device: '{full}/" in ended.stderr or (
        kind == "timeline" and f"'{full}/timeline/" in ended.stderr
    )
    if kind in ("model", "weights"):  # which are what was wanted
        assert ended.status != 0
        assert "verdict: rank 0" in ended.stderr
        assert "raised OSError" in ended.stderr
    else:
        assert ended.status == 0, ended.stderr
        assert ended.lines(0)[-1] == "epochs 2"
        # Each backup and commit; each rank's timeline.
        assert ended.stderr.count(f"'{full}/") >= 2
    assert not [*full.rglob(".partial*")]
