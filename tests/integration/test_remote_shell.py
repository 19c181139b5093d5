"""hvdrun starts agents through a program of another system, such as Ray.

Here both of its hosts are this machine, and no Ray is needed.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jobs
import pytest

import hvd_keras as hvd
from hvd_keras.ray.holder import Holder
from hvd_keras.ray.shell import Server
from hvd_keras.run.function import run_spec
from hvd_keras.run.spec import Elastic, JobSpec, Reach

pytest.importorskip("cloudpickle")


@pytest.fixture(autouse=True)
def _environ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(jobs.clean_environ()):
        monkeypatch.delenv(name)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(
        lambda host, command, configuration, has_gone: Holder().run(
            f"NAME={host}; export NAME; {command}", configuration, {}, 3
        )
    )
    yield made
    made.close()


def _spec(server: Server, folder: Path) -> JobSpec:
    script = folder / "list_hosts"
    script.write_text("#!/bin/sh\necho one:2 two:1\n")
    script.chmod(0o700)
    return JobSpec(
        (),
        reach=Reach(python="python3", shell=server.command),
        elastic=Elastic(
            3, max_ranks=3, max_restarts=0, host_discovery_script=str(script)
        ),
        settings={"HVD_INTERFACE": "127.0.0.1"},
    )


def _place(start: str) -> dict[str, object]:
    hvd.init()
    return {
        "rank": hvd.rank(),
        "size": hvd.size(),
        "host": os.environ["NAME"],
        "threads": os.environ["OMP_NUM_THREADS"],
        "prefix": sys.prefix,
        "start": start,
    }


def test_ranks_start_where_the_program_says(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # of the caller alone
    spec = _spec(server, tmp_path)
    found = run_spec(spec, _place, ["x"], executable="python3")
    assert [one["rank"] for one in found] == [0, 1, 2]
    assert sorted(str(one["host"]) for one in found) == ["one", "one", "two"]
    for one in found:
        assert one["size"] == 3
        assert one["threads"] == "3"
        assert one["prefix"] == sys.prefix
        assert one["start"] == "x"


def test_a_host_that_cannot_be_reached_is_named(tmp_path: Path) -> None:
    def refuse(*_: object) -> tuple[int, str]:
        return 3, "there is no such node"

    server = Server(refuse)
    with pytest.raises(hvd.LaunchError, match="there is no such node"):
        run_spec(_spec(server, tmp_path), _place, ["x"])
    server.close()


def test_an_agent_dies_with_its_holder(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    with socket.create_server(("127.0.0.1", 0)) as job:  # it never answers
        settings = {
            "HVD_RENDEZVOUS": f"tcp:127.0.0.1:{job.getsockname()[1]}",
            "HVD_SECRET": "01" * 32,
        }
        told = {"settings": settings, "index": 0, "num_hosts": 1}
        command = f"echo $$ > {pid}; exec python3 -m hvd_keras.run.hosts.agent"
        code = (
            "from hvd_keras.ray.holder import Holder\n"
            f"Holder().run({command!r}, {json.dumps(told).encode()!r}, {{}}, 1)"
        )
        holder = subprocess.Popen([sys.executable, "-c", code])
        peer, _ = job.accept()
        with peer:
            holder.kill()
            holder.wait()
            peer.settimeout(30)
            while peer.recv(4096):  # it ends when the agent has died
                pass
        jobs.wait_for(lambda: not jobs.is_alive(int(pid.read_text())))
