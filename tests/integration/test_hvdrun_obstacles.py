"""hvdrun goes on where it cannot write, and says so in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import jobs
import pytest
from rendezvous_server import SECRET

from hvd_keras._rendezvous.client import Rendezvous
from hvd_keras._rendezvous.listener import Listener
from hvd_keras._rendezvous.protocol import Identity, Role
from hvd_keras._rendezvous.server import Server

_CODE = """
import hvd_keras as hvd
hvd.init()
print("up", flush=True)
"""


def test_job_goes_on_when_the_disk_of_its_files_is_full(
    tmp_path: Path,
) -> None:
    for rank in range(2):
        directory = tmp_path / f"rank.{rank}"
        directory.mkdir()
        (directory / "stdout").symlink_to("/dev/full")
    job = jobs.run_python(2, _CODE, f"--output-dir={tmp_path}")
    assert job.status == 0, job.stderr
    assert [job.lines(rank) for rank in range(2)] == [["up"], ["up"]]
    assert job.stderr.count("No space left on device") == 1
    assert f"hvdrun: '{tmp_path}/rank." in job.stderr
    assert "choose another directory" in job.stderr


def test_job_goes_on_when_its_files_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for output_dir, why in (
        (tmp_path / "file", "Not a directory"),
        (tmp_path / ("x" * 300), "File name too long"),
    ):
        job = jobs.run_python(2, _CODE, f"--output-dir={output_dir}")
        assert job.status == 0, job.stderr
        assert job.lines(1) == ["up"]
        assert job.stderr.count(why) == 1


@pytest.mark.parametrize("closed", [[0], [1], [2], [0, 1, 2]])
def test_job_goes_on_with_closed_streams(
    closed: list[int], tmp_path: Path
) -> None:
    def close() -> None:
        for descriptor in closed:
            os.close(descriptor)

    done = subprocess.run(
        [sys.executable, "-m", "hvd_keras.run", "-np", "2",
         f"--output-dir={tmp_path}", "--", *jobs.python(_CODE)],
        env=jobs.clean_environ(),
        capture_output=True,
        text=True,
        timeout=30,
        preexec_fn=close,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        shown = (tmp_path / f"rank.{rank}" / "stdout").read_text()
        assert shown == "up\n"
    if 1 not in closed:
        assert sorted(done.stdout.splitlines()) == ["[0] up", "[1] up"]
    if closed == [1]:
        assert "the standard output is closed" in done.stderr


def test_full_standard_output_is_said_once() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hvd_keras.run", "-np", "2", "--",
             *jobs.python(_CODE)],
            env=jobs.clean_environ(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("No space left on device") == 1


_READ_ONLY = """
mount -t tmpfs none /mnt || exit 77
for directory in /tmp /var/tmp /dev/shm; do
    mount --bind $directory $directory || exit 77
    mount -o remount,bind,ro $directory || exit 77
done
exec "$@"
"""


@pytest.mark.parametrize("with_tmpdir", [True, False])
def test_job_runs_where_tmp_is_read_only(with_tmpdir: bool) -> None:
    directory = "/mnt" if with_tmpdir else "/nowhere"
    environ = jobs.clean_environ(XDG_RUNTIME_DIR="/nowhere", TMPDIR=directory)
    code = _CODE + "import os; print(os.environ['HVD_RENDEZVOUS'])"
    done = subprocess.run(
        ["unshare", "-m" if os.geteuid() == 0 else "-Urm",
         "sh", "-c", _READ_ONLY, "sh", sys.executable, "-m", "hvd_keras.run",
         "-np", "2", "--", *jobs.python(code)],
        env=environ,
        capture_output=True,
        text=True,
        timeout=30,
    )  # fmt: skip
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip("this user may not mount")
    assert done.returncode == 0, done.stderr
    expected = "[0] unix:/proc/" if with_tmpdir else "[0] unix:@"
    assert expected in done.stdout


def test_directory_may_have_a_long_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / ("x" * 150)
    directory.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(directory))
    listener = Listener(backlog=1)
    listener.socket.settimeout(5)
    server = Server(listener.socket, SECRET)
    identity = Identity(Role.MEMBER, 0, 1, 0, 1)
    with pytest.raises(Exception, match="did not answer"):
        Rendezvous(listener.address, SECRET, identity, timeout_seconds=0.1)
    server.close()
    listener.close_address()
    assert list(directory.iterdir()) == []
