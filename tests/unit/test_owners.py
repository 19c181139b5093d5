"""One process at a time writes a file, and a dead one keeps nobody out."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from hvd_keras._common import files, owners
from hvd_keras.exceptions import FileInUseError

_HOLD = """
import sys, time
from hvd_keras._common import owners
owners.claim(sys.argv[1])
print(owners.me().name, flush=True)
time.sleep(60)
"""
_SECONDS = 0.5


@pytest.fixture
def path(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    monkeypatch.setattr(owners, "_PATIENCE_SECONDS", _SECONDS)
    path = str(tmp_path / "state.npz")
    yield path
    owners.release(path)


@contextlib.contextmanager
def other_process(path: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Runs a process that owns `path`; yields it and its name."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, path], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def owner_file(path: str) -> pathlib.Path:
    folder, name = os.path.split(path)
    return pathlib.Path(folder, f".{name}.owner")


def write_owner(path: str, **changed: Any) -> None:
    """Writes the file of an owner that is not this process."""
    me = owners.me()
    known = {
        "host": "b",
        "kernel": me.kernel,
        "pid": me.pid,
        "start_ticks": me.start_ticks,
        "since": time.time(),
    }
    owner_file(path).write_text(json.dumps({**known, **changed}))


def seconds_to_claim(path: str, **options: Any) -> float:
    began = time.monotonic()
    owners.claim(path, **options)
    return time.monotonic() - began


def test_a_second_process_is_refused_by_host_pid_and_start(path: str) -> None:
    told: list[str] = []
    with other_process(path) as (process, _):
        with pytest.raises(FileInUseError) as raised:
            owners.claim(path, tell=told.append)
        who = f"host {os.uname().nodename}, pid {process.pid}, since 20"
        assert who in str(raised.value)
        assert path in str(raised.value)
        assert len(told) == 1
        # Another file in that folder is another matter.
        owners.claim(path + ".other")
    owners.release(path + ".other")


@pytest.mark.parametrize("is_reaped", [False, True])
def test_a_killed_process_keeps_nobody_out(path: str, is_reaped: bool) -> None:
    with other_process(path) as (process, _):
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        if is_reaped:
            process.wait()
        assert seconds_to_claim(path) < _SECONDS


def test_another_process_with_the_pid_keeps_nobody_out(path: str) -> None:
    write_owner(path, pid=os.getppid(), start_ticks=1)
    assert seconds_to_claim(path) < _SECONDS


@pytest.mark.parametrize("text", ["", "{", "[]", '{"since": 1}', "\0" * 99])
def test_an_owner_that_died_before_it_said_who_it_is(
    path: str, text: str
) -> None:
    owner_file(path).write_text(text)
    assert seconds_to_claim(path) < _SECONDS


def test_a_dying_job_is_waited_for(path: str) -> None:
    with other_process(path) as (process, _):
        killer = threading.Timer(_SECONDS / 2, process.kill)
        killer.start()
        assert seconds_to_claim(path) >= _SECONDS / 4
        killer.join()


def test_another_host_that_renews_its_file_is_alive(path: str) -> None:
    write_owner(path, kernel="0" * 8)
    is_over = threading.Event()

    def renew() -> None:
        while not is_over.wait(0.05):
            os.utime(owner_file(path))

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(FileInUseError, match="host b, pid"):
            owners.claim(path)
    finally:
        is_over.set()
        thread.join()


def test_another_host_that_is_silent_has_ended(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "_STALE_SECONDS", 2 * _SECONDS)
    write_owner(path, kernel="0" * 8)
    seconds = seconds_to_claim(path)
    assert 2 * _SECONDS - 0.1 <= seconds < 8 * _SECONDS
    owners.release(path)
    # One that has been silent for long is not waited for.
    write_owner(path, kernel="0" * 8)
    os.utime(owner_file(path), (time.time() - 99,) * 2)
    assert seconds_to_claim(path) < _SECONDS


def test_ranks_of_one_job_hand_over(path: str) -> None:
    with other_process(path) as (_, name):
        assert seconds_to_claim(path, of_job=[name]) < _SECONDS


def test_who_has_lost_a_file_is_told_when_it_writes(path: str) -> None:
    owners.claim(path)
    owners.claim(path)  # it is still ours
    write_owner(path, pid=1, start_ticks=1)
    with pytest.raises(FileInUseError, match="pid 1,"):
        owners.claim(path)


def test_an_owner_file_that_somebody_removes_comes_again(path: str) -> None:
    owners.claim(path)
    owner_file(path).unlink()
    owners.claim(path)
    assert owner_file(path).exists()
    owners.release(path)
    assert not owner_file(path).exists()


def test_a_forked_child_does_not_let_go(path: str) -> None:
    owners.claim(path)
    child = multiprocessing.get_context("fork").Process(
        target=owners._release_all
    )
    child.start()
    child.join()
    assert owner_file(path).exists()


def _race(path: str, results: Any) -> None:
    owners._PATIENCE_SECONDS = 0.2
    try:
        owners.claim(path)
        results.put(1)
    except FileInUseError:
        results.put(0)
    time.sleep(2)  # it lives until all have tried


@pytest.mark.parametrize("is_left_over", [False, True])
def test_one_of_many_wins(path: str, is_left_over: bool) -> None:
    if is_left_over:
        write_owner(path, pid=1, start_ticks=1)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    racers = [
        context.Process(target=_race, args=(path, results)) for _ in range(8)
    ]
    for racer in racers:
        racer.start()
    won = [results.get(timeout=20) for _ in racers]
    for racer in racers:
        racer.join()
    assert sum(won) == 1


def test_partial_files_of_dead_writers_go(path: str) -> None:
    with other_process(path) as (process, name):
        folder = pathlib.Path(path).parent
        left = folder / f".partial.{name}.00000000.state.npz"
        foreign = folder / ".partial.00000000-7-7.00000000.state.npz"
        for each in (left, foreign):
            each.write_bytes(b"half")
        files.write(path, b"1")
        assert left.exists(), "its writer lives"
        process.kill()
        process.wait()
        files.write(path, b"2")
        assert not left.exists()
        assert foreign.exists(), "it is new, and of another host"
        os.utime(foreign, (time.time() - 7200,) * 2)
        files.write(path, b"3")
        assert not foreign.exists()
    assert pathlib.Path(path).read_bytes() == b"3"


@pytest.mark.parametrize(
    ("owned", "left", "stays"),
    [
        ("state.npz", "state.npz", "state.npz.bak"),
        ("{epoch:02d}.keras", "07.keras", "07.weights.h5"),
        ("commit-{number}.hvd", "commit-00000001-00000002.hvd", "commit.hvd"),
        ("run{epoch}/[best].h5", "run3/[best].h5", "run3/b.h5"),
    ],
)
def test_the_owner_removes_partial_files_of_other_hosts(
    tmp_path: pathlib.Path, owned: str, left: str, stays: str
) -> None:
    paths = []
    for each in (left, stays):
        folder, name = os.path.split(tmp_path / each)
        os.makedirs(folder, exist_ok=True)
        paths.append(
            pathlib.Path(folder, f".partial.0000000f-7-7.{'0' * 8}.{name}")
        )
        paths[-1].write_bytes(b"half")
    files.remove_left_over(str(tmp_path / owned), is_owned=True)
    assert [path.exists() for path in paths] == [False, True]


def test_paths_of_epochs_have_one_owner(tmp_path: pathlib.Path) -> None:
    path = str(tmp_path / "run{epoch}" / "{epoch:02d}.keras")
    owners.claim(path)
    (file,) = tmp_path.iterdir()
    assert file.name == ".run{epoch}%{epoch:02d}.keras.owner"
    owners.release(path)
    assert not [*tmp_path.iterdir()]
