"""Another system, such as Ray, names the hosts of a job and starts its agents.

Here its hosts are this machine, and no Ray is needed.
"""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jobs
import pytest

import hvd_keras as hvd
from hvd_keras.ray.holder import Holder
from hvd_keras.run.function import run_spec
from hvd_keras.run.hosts.provider import Provider
from hvd_keras.run.spec import Elastic, JobSpec, Provision, Reach

pytest.importorskip("cloudpickle")


@pytest.fixture(autouse=True)
def _environ(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) - set(jobs.clean_environ()):
        monkeypatch.delenv(name)


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider(_run_agent)
    yield made
    made.close()


def _run_agent(
    host: str, command: str, configuration: Any, has_gone: Any
) -> tuple[int, str]:
    del has_gone
    words = f"NAME={host}; export NAME; {command}"
    return Holder().run(words, configuration, {}, 3)


def _spec(**options: Any) -> JobSpec:
    return JobSpec(
        (),
        reach=Reach(python="python3"),
        elastic=Elastic(**{"min_ranks": 3, "max_restarts": 0, **options}),
        settings={"HVD_INTERFACE": "127.0.0.1"},
        provision=Provision("Test", {"one": 2, "two": 1}),
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


def test_ranks_start_where_the_provider_says(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # of the caller alone
    found = run_spec(
        _spec(), _place, ["x"], executable="python3", provider=provider
    )
    assert [one["rank"] for one in found] == [0, 1, 2]
    assert sorted(str(one["host"]) for one in found) == ["one", "one", "two"]
    for one in found:
        assert one["size"] == 3
        assert one["threads"] == "3"
        assert one["prefix"] == sys.prefix
        assert one["start"] == "x"


@pytest.mark.parametrize("error", [None, RuntimeError])
def test_a_host_that_cannot_be_reached_is_named(
    error: type[Exception] | None,
) -> None:
    def refuse(*_: object) -> tuple[int, str]:
        if error is not None:
            raise error("there is no such node")
        return 3, "there is no such node"

    for _ in range(2):  # a caller may try again
        provider = Provider(refuse)
        with pytest.raises(hvd.LaunchError, match="there is no such node"):
            run_spec(_spec(), _place, ["x"], provider=provider)
        provider.close()


def _wait_for_size(folder: str, size: int) -> tuple[int, list[str]]:
    """Goes through generations until there are so many members."""
    hvd.init()

    @hvd.elastic.run
    def train(state: Any) -> list[str]:
        while hvd.size() != size:
            (Path(folder) / f"{hvd.size()}").touch()
            time.sleep(0.1)
            state.commit()
        return hvd.allgather_object(os.environ["NAME"])

    names = train(hvd.elastic.ObjectState(count=0))
    return hvd.rank(), names


@pytest.mark.parametrize(
    ("hosts", "size", "where"),
    [
        ({"one": 2, "two": 1, "three": 1}, 4, ["one", "one", "three", "two"]),
        ({"one": 2}, 2, ["one", "one"]),
    ],
)
def test_hosts_come_and_go_when_the_provider_says_so(
    provider: Provider,
    tmp_path: Path,
    hosts: dict[str, int],
    size: int,
    where: list[str],
) -> None:
    def change() -> None:
        jobs.wait_for(lambda: (tmp_path / "3").exists())
        provider.tell(hosts)

    thread = threading.Thread(target=change)
    thread.start()
    found = run_spec(
        _spec(min_ranks=2, max_ranks=4, max_restarts=3),
        _wait_for_size,
        [str(tmp_path), size],
        executable="python3",
        provider=provider,
    )
    thread.join()
    assert [rank for rank, _ in found] == [*range(size)]
    for _, names in found:
        assert sorted(names) == where


def test_agents_of_a_job_that_was_killed_are_given_up() -> None:
    given_up: queue.Queue[str] = queue.Queue()

    def run_agent(
        host: str, command: str, told: Any, has_gone: Callable[[], bool]
    ) -> tuple[int, str]:
        del command, told
        jobs.wait_for(has_gone)
        given_up.put(host)
        return 1, ""

    code = (
        "import os, sys\n"
        "from hvd_keras.run.hosts.provider import Provided\n"
        "from hvd_keras.run.spec import Provision\n"
        "from hvd_keras.run.system.loop import Loop\n"
        "provided = Provided(Loop(), Provision('', {}, int(sys.argv[1])))\n"
        "for host in 'ab': provided.start(host, ['x'], {}, print)\n"
        "print(flush=True)\n"
        "os.read(0, 1)\n"
    )
    provider = Provider(run_agent)
    job = subprocess.Popen(
        [sys.executable, "-c", code, str(provider.fileno())],
        pass_fds=[provider.fileno()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    provider.started()
    with job:
        assert job.stdout is not None
        job.stdout.readline()
        job.kill()
    assert {given_up.get(timeout=30), given_up.get(timeout=30)} == {"a", "b"}
    provider.close()


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
            f"Holder().run({command!r}, {told!r}, {{}}, 1)"
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
