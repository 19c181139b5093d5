"""A bootstrap server in a thread, and clients for it."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hvd_keras._rendezvous import addresses, protocol
from hvd_keras._rendezvous.client import Rendezvous, reporter
from hvd_keras._rendezvous.fixed_generations import FixedGenerations
from hvd_keras._rendezvous.generations import Generations
from hvd_keras._rendezvous.listener import listen_tcp
from hvd_keras._rendezvous.protocol import Identity, Role
from hvd_keras._rendezvous.server import Server
from hvd_keras.exceptions import HvdError, PeerLostError, StalledError

SECRET = bytes(range(32))
SIZE = 3


class Served:
    """Runs a server in a thread and makes clients for it."""

    def __init__(
        self,
        path: str = "",
        size: int = SIZE,
        tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    ) -> None:
        """Serves at `path`; "" is a TCP port of the loopback interface.

        With `tls`, the contexts of server and client, TCP uses TLS.
        """
        self.reports: list[protocol.Report] = []
        self.generations = [
            0
        ] * size  # the last generation that each rank was told
        self.path = path
        if path:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(path)
            listener.listen(100)
        else:
            listener = listen_tcp("127.0.0.1", 0, 100)
            self.path = addresses.of_tcp(*listener.getsockname())
        server_tls, self._tls = tls or (None, None)
        self.server = Server(
            listener,
            SECRET,
            self.make_generations(size),
            self.reports.append,
            tls=server_tls,
        )
        self._calls: list[Callable[[], None]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def make_generations(self, size: int) -> Generations:
        self.fixed = FixedGenerations(size)
        return self.fixed

    def _run(self) -> None:
        while not self._stop.is_set():
            self.server.step(0.02)
            while self._calls:
                self._calls.pop()()
        self.server.close()

    def rank_exited(self, rank: int, what: str) -> None:
        self._call(lambda: self.fixed.rank_exited(rank, what))

    def rank_started(self, rank: int) -> None:
        """Restarts the process of `rank`; the new one has joined none."""
        self._call(lambda: self.fixed.rank_started(rank))
        self.generations[rank] = 0

    def _call(self, call: Callable[[], None]) -> None:
        done = threading.Event()
        self._calls.append(lambda: (call(), done.set())[0])
        assert done.wait(10)

    def settle(self) -> None:
        """Waits until the server has ended the step that it is in."""
        self._call(lambda: None)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def identity(self, rank: int, **options: Any) -> Identity:
        """Returns the identity of `rank`, whose process has pid 100 + rank."""
        return Identity(
            Role.MEMBER,
            rank,
            options.pop("size", SIZE),
            options.pop("generation", self.generations[rank]),
            options.pop("pid", 100 + rank),
        )

    def join(self, rank: int, **options: Any) -> Rendezvous:
        own = {
            n: options.pop(n)
            for n in ("size", "generation", "pid")
            if n in options
        }
        identity = self.identity(rank, **own)
        options.setdefault("timeout_seconds", 10.0)
        options.setdefault("tls", self._tls)
        secret = options.pop("secret", SECRET)
        rendezvous = Rendezvous(self.path, secret, identity, **options)
        self.generations[rank] = rendezvous.generation
        return rendezvous

    def raw(self) -> socket.socket:
        sock = addresses.connect(self.path, 10)
        return self._tls.wrap_socket(sock) if self._tls else sock

    def proved(self, rank: int) -> socket.socket:
        """Returns a raw connection after its handshake, as a member."""
        sock = self.raw()
        nonce = read(sock, protocol.HELLO_BYTES)[len(protocol.MAGIC) :]
        identity = self.identity(rank)
        sock.sendall(protocol.proof(SECRET, nonce, identity))
        read(sock, protocol.MAC_BYTES)
        kind, length = protocol.frame_header(
            read(sock, protocol.FRAME_HEADER_BYTES)
        )
        assert kind == protocol.FrameType.JOINED
        self.generations[rank] = protocol.unpack_generation(read(sock, length))
        return sock


@contextlib.contextmanager
def serving(tmp_path: Path | None, size: int) -> Iterator[Served]:
    """Serves at a Unix socket in a directory; None: at a TCP port."""
    if tmp_path is None:
        found = Served("", size)
        yield found
        found.close()
        return
    # The path of a socket must be short.
    directory = tmp_path if len(str(tmp_path)) < 80 else Path("/tmp")
    path = directory / f"server.{os.getpid()}"
    found = Served(str(path), size)
    yield found
    found.close()
    path.unlink()


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


def report(
    path: str, secret: bytes, identity: Identity, told: protocol.Report
) -> None:
    """Tells a server something, if it lets the teller in."""
    with contextlib.suppress(HvdError):
        reporter(path, secret, identity).tell_last(told)


def exchange_all(served: Served) -> int:
    """Runs a whole membership with two exchanges and returns its generation."""

    def rank(number: int) -> list[list[bytes]]:
        with served.join(number) as rendezvous:
            return [
                rendezvous.exchange(b"%d" % number),
                rendezvous.exchange(b"x" * number),
            ]

    def after_failures(number: int) -> list[list[bytes]]:
        """Joins again after each failed membership."""
        while True:
            with contextlib.suppress(PeerLostError, StalledError):
                return rank(number)

    with ThreadPoolExecutor(SIZE) as pool:
        for values in pool.map(after_failures, range(SIZE)):
            assert values == [[b"0", b"1", b"2"], [b"", b"x", b"xx"]]
    (generation,) = set(served.generations)
    return generation


def outcomes(*calls: Callable[[], object]) -> list[object]:
    """Makes the calls at the same time; returns what each gives or raises."""

    def guarded(call: Callable[[], object]) -> object:
        try:
            return call()
        except HvdError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(guarded, calls))
