"""Whatever an agent or a job says, the other one ends the connection alone."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from fuzzing import changed, run_cases

from hvd_keras._rendezvous import addresses
from hvd_keras._rendezvous.listener import listen_tcp
from hvd_keras._rendezvous.stream import Stream
from hvd_keras.config import Config
from hvd_keras.run.hosts import link
from hvd_keras.run.hosts.host import RemoteHost
from hvd_keras.run.hosts.link import Kind
from hvd_keras.run.ranks.environment import Place
from hvd_keras.run.system.loop import Loop


class Listening:
    """Takes whatever the host says; see `AgentWatcher`."""

    def __init__(self) -> None:
        self.lost: list[str] = []

    def host_is_lost(self, host: RemoteHost, reason: link.Loss) -> None:
        self.lost.append(reason.text)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: None


class Pair:
    """A host of the job, and the socket of its agent."""

    def __init__(self) -> None:
        listener = listen_tcp("127.0.0.1", 0, 1)
        self.agent = addresses.connect(
            addresses.of_tcp(*listener.getsockname()), 5
        )
        served, _ = listener.accept()
        listener.close()
        self.loop, self.watcher = Loop(), Listening()
        self.host = RemoteHost(
            self.loop, self.watcher, "b", Config(), has_own_command=False
        )
        self.host.place = Place(2, 2, 4)
        self.host.attach(Stream(served), b"", 7)

    def say(self, data: bytes) -> None:
        self.agent.settimeout(5)
        with contextlib.suppress(OSError):
            self.agent.sendall(data)
        for _ in range(4):
            if not self.host.has_ended():
                self.loop.step(0.01)

    def close(self) -> None:
        self.agent.close()
        self.host.close()


@pytest.fixture
def pair() -> Iterator[Pair]:
    found = Pair()
    yield found
    found.close()


_GOOD = [
    link.frame(Kind.BEAT, b""),
    link.frame(Kind.FACTS, {"num_cores": 4, "num_ranks": None}),
    link.frame(Kind.STARTED, {"rank": 2, "pid": 70}),
    link.frame(Kind.OUTPUT, link.OUTPUT_HEADER.pack(3, 1) + b"text"),
    link.frame(Kind.EXITED, {"rank": 2, "exit_status": 0, "signal": None}),
    link.frame(Kind.FAILED, {"text": "t", "exit_status": 2}),
    link.frame(Kind.SIGNALLED, {"signal": 15}),
]


def test_good_messages_are_taken(pair: Pair) -> None:
    pair.say(b"".join(_GOOD))
    assert pair.watcher.lost == []
    assert pair.host.facts["num_cores"] == 4


@pytest.mark.parametrize(
    "message",
    [
        link.frame(Kind.STARTED, {"rank": 1, "pid": 70}),
        link.frame(Kind.STARTED, {"rank": 2}),
        link.frame(Kind.STARTED, b"[]"),
        link.frame(Kind.STARTED, b"[" * 100000),
        link.frame(Kind.EXITED, {"rank": 2, "exit_status": "x", "signal": 1}),
        link.frame(Kind.OUTPUT, link.OUTPUT_HEADER.pack(9, 1)),
        link.frame(Kind.OUTPUT, link.OUTPUT_HEADER.pack(2, 3)),
        link.frame(Kind.OUTPUT, b"\0"),
        link.frame(Kind.START, {}),
        b"\xff\0\0\0\0",
        b"\1\xff\xff\xff\xff",
    ],
)
def test_message_that_makes_no_sense_ends_the_connection(
    pair: Pair, message: bytes
) -> None:
    pair.say(message)
    (reason,) = pair.watcher.lost
    assert "made no sense" in reason
    assert pair.agent.recv(1 << 20) in (b"", *_GOOD[:1])


def test_random_messages_do_no_harm() -> None:
    def case(source: random.Random) -> None:
        pair = Pair()
        for _ in range(4):
            pair.say(changed(source.choice(_GOOD), source))
        deep = json.dumps({"rank": 2, "pid": source.getrandbits(200)})
        pair.say(link.frame(Kind.STARTED, deep.encode()))
        pair.close()

    tracemalloc.start()
    run_cases(case, 100)
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_socket_that_hangs_up_is_lost(pair: Pair) -> None:
    pair.agent.shutdown(socket.SHUT_RDWR)
    pair.say(b"")
    assert pair.watcher.lost == ["the connection ended"]
