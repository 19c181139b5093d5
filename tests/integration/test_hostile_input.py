"""Hosts, names and records of others end hvdrun and its tools by one line."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import jobs
import pytest

from hvd_keras._observe import command, recording, report
from hvd_keras._records import evidence

_LONG = "a" * 70


def _one_line(job: jobs.Outcome) -> str:
    assert job.status == 2, job.stderr
    assert job.stderr.endswith("\n")
    assert all(line.isprintable() for line in job.stderr.splitlines())
    assert len(job.stderr) < 2000
    return job.stderr


@pytest.mark.parametrize(
    ("printed", "words"),
    [
        (f"echo {_LONG}:1", "must have an address"),
        (f"echo b.{_LONG}.c:1", "must have an address"),
        (r"printf 'a\033c:1\n'", r"Received: 'a\x1bc:1'"),
        ("echo a:1000000000", "must print lines such as host:4"),
        ("for i in 1 2 3; do echo $i:30000; done", "90000 slots"),
        (f"echo a:{'9' * 5000}", "must print lines such as host:4"),
        ("echo a:x", "must print lines such as host:4"),
        ("exec yes a:1", "more than 1,048,576 bytes"),
        ("exec cat /dev/zero", "more than 1,048,576 bytes"),
    ],
)
def test_what_a_discovery_script_prints(
    printed: str, words: str, tmp_path: Path
) -> None:
    script = tmp_path / "hosts.sh"
    script.write_text(f"#!/bin/bash\n{printed}\n")
    script.chmod(0o700)
    job = jobs.run(
        "--host-discovery-script", str(script), "--min-np", "1",
        "--start-timeout", "3", "--", "true",
    )  # fmt: skip
    text = _one_line(job)
    assert words in text
    assert job.seconds < 15


@pytest.mark.parametrize("way", ["-H", "--hostfile"])
@pytest.mark.parametrize(
    ("host", "words"),
    [
        (f"{_LONG}:1", "must have an address"),
        ("a\x1bc:1", "printable characters"),
        ("a\u202eb:1", "printable characters"),
        ("a:1000000000", "65536 slots at most"),
        (f"a:{'1' * 5000}", "65536 slots at most"),
    ],
)
def test_hosts_on_the_command_line(
    way: str, host: str, words: str, tmp_path: Path
) -> None:
    value = host
    if way == "--hostfile":
        value = str(tmp_path / "hosts")
        Path(value).write_text(host)
    text = _one_line(jobs.run(way, value, "--", "true"))
    assert words in text


def test_a_hostfile_without_end_is_none() -> None:
    job = jobs.run("--hostfile", "/dev/zero", "--", "true")
    assert "more than 1,048,576 characters" in _one_line(job)


@pytest.mark.parametrize("limit", [10, 13, 16])
def test_the_limit_of_descriptors_is_named(limit: int) -> None:
    def lower() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    job = subprocess.run(
        [sys.executable, "-m", "hvd_keras.run", "-np", "2", "--", "true"],
        env=jobs.clean_environ(),
        capture_output=True,
        text=True,
        timeout=30,
        preexec_fn=lower,
    )
    assert job.returncode == 2
    text = job.stderr.splitlines()[-1]
    assert "open 32 files for 2 ranks" in text
    assert f"Received: {limit} (`ulimit -n`)" in text


@pytest.mark.parametrize(
    "code",
    [
        "raise ValueError('\\x1b]0;title\\x07')",
        """
        import numpy as np
        import hvd_keras as hvd
        from hvd_keras import _core
        hvd.init()
        shape = 2 + hvd.rank()
        _core.allreduce("\\x1b[2Jname", [np.zeros(shape, np.float32)], 1)
        """,
    ],
)
def test_hvdrun_escapes_what_ranks_have_named(code: str) -> None:
    job = jobs.run_python(2, code)
    assert job.status == 1
    own = [line for line in job.stderr.splitlines() if not line.startswith("[")]
    assert any("x1b" in line for line in own), job.stderr
    assert all(line.isprintable() for line in own)
    # What the ranks print themselves stays as it is.
    assert "\x1b" in job.stderr


DEEP = "[" * 200_000
HEADER = {
    "rank": 0, "size": 1, "host": "a", "pid": 1, "reason": "", "steps": 0,
    "monotonic_ns": 0, "unix_ns": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    "job",
    [DEEP, '{"size": 1e309}', '{"size": 1000000000}', '{"size": [1]}', "7"],
)
@pytest.mark.parametrize("flight", [DEEP, json.dumps(HEADER)])
def test_doctor_reads_broken_records(
    job: str,
    flight: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "job.json").write_text(job)
    (tmp_path / "flight_rank_0.jsonl").write_text(flight)
    status = command.main([str(tmp_path)])
    told = capsys.readouterr()
    assert status == (2 if flight == DEEP else 1)
    assert len(told.out) + len(told.err) < 1000


def test_records_that_never_end_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "flight_rank_0.jsonl")
    (tmp_path / "stacks_rank_0.txt").symlink_to("/dev/zero")
    with open(tmp_path / "error_rank_0.txt", "wb") as file:
        file.truncate(1 << 40)
    assert evidence.read(str(tmp_path)).size == 0
    assert command.main([str(tmp_path)]) == 2
    timeline = tmp_path / recording.file_name(0)
    for make in (
        lambda: os.mkfifo(timeline),
        lambda: timeline.symlink_to("/dev/zero"),
        lambda: os.truncate(os.open(timeline, os.O_CREAT | os.O_RDWR), 1 << 40),
    ):
        make()
        assert report.main([str(tmp_path)]) == 1
        assert "must be a regular file" in capsys.readouterr().err
        timeline.unlink()
