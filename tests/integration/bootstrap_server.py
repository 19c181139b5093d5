"""A server of the bootstrap in a thread, and clients for it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hvd_keras._job.bootstrap import wire
from hvd_keras._job.bootstrap.client import Rendezvous
from hvd_keras._job.bootstrap.server import ExchangeServer
from hvd_keras._job.bootstrap.wire import Identity, Role
from hvd_keras.exceptions import (
    HvdError,
)

SECRET = bytes(range(32))
SIZE = 3


class Served:
    """A server in a thread, and clients for it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.reports: list[tuple[int, str]] = []
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(100)
        self.server = ExchangeServer(
            listener, SECRET, SIZE, lambda *report: self.reports.append(report)
        )
        self._calls: list[Callable[[], None]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.server.step(0.02)
            while self._calls:
                self._calls.pop()()
        self.server.close()

    def rank_exited(self, rank: int, what: str) -> None:
        self._calls.append(lambda: self.server.rank_exited(rank, what))

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def join(
        self, rank: int, generation: int = 1, **options: Any
    ) -> Rendezvous:
        options.setdefault("timeout_seconds", 10.0)
        size = options.pop("size", SIZE)
        secret = options.pop("secret", SECRET)
        identity = Identity(Role.MEMBER, rank, size, generation, 100 + rank)
        return Rendezvous(self.path, secret, identity, **options)

    def raw(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(10)
        sock.connect(self.path)
        return sock

    def proved(self, rank: int, generation: int = 1) -> socket.socket:
        """A raw connection that has done the handshake."""
        sock = self.raw()
        nonce = read(sock, wire.HELLO_BYTES)[len(wire.MAGIC) :]
        identity = Identity(Role.MEMBER, rank, SIZE, generation, 1)
        sock.sendall(wire.proof(SECRET, nonce, identity))
        read(sock, wire.MAC_BYTES)
        return sock


def read(sock: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        part = sock.recv(num_bytes - len(data))
        assert part, "the server hung up"
        data += part
    return data


def is_hung_up(sock: socket.socket, seconds: float = 10) -> bool:
    sock.settimeout(seconds)
    try:
        while True:
            if not sock.recv(4096):
                return True
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def exchange_all(served: Served, generation: int = 1) -> None:
    """A whole generation must work, with two exchanges."""

    def rank(number: int) -> list[list[bytes]]:
        with served.join(number, generation) as rendezvous:
            return [
                rendezvous.exchange(b"%d" % number),
                rendezvous.exchange(b"x" * number),
            ]

    with ThreadPoolExecutor(SIZE) as pool:
        for values in pool.map(rank, range(SIZE)):
            assert values == [[b"0", b"1", b"2"], [b"", b"x", b"xx"]]


def outcomes(*calls: Callable[[], object]) -> list[object]:
    """What the calls, made together, return or raise."""

    def guarded(call: Callable[[], object]) -> object:
        try:
            return call()
        except HvdError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(guarded, calls))
