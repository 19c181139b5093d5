"""Whatever comes over a socket of the rendezvous, nobody but the sender ends.

The server goes on for all others, in little memory; a client gets an exception
of hvd_keras. Those who fuzz know the secret: without it nothing is read.
"""

from __future__ import annotations

import contextlib
import random
import socket
import tempfile
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fuzzing import changed, run_cases

from hvd_keras._rendezvous import protocol
from hvd_keras._rendezvous.client import Rendezvous
from hvd_keras._rendezvous.elastic_generations import ElasticGenerations
from hvd_keras._rendezvous.fixed_generations import FixedGenerations
from hvd_keras._rendezvous.protocol import FrameType, Identity, Role
from hvd_keras._rendezvous.server import Server as RendezvousServer
from hvd_keras.exceptions import HvdError

SECRET = bytes(range(32))
SIZE = 2


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:  # tmp_path may be too long
        yield Path(name)


class Server:
    """A server that runs when it is told to, and sockets to it."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._path))
        listener.listen(100)
        self._fixed = FixedGenerations(SIZE)
        self._server = RendezvousServer(listener, SECRET, self._fixed)

    def run(self) -> None:
        """Does all that there is to do now."""
        for _ in range(6):
            self._server.step(0)

    def close(self) -> None:
        """Ends it."""
        self._server.close()
        self._path.unlink()

    def connect(self) -> tuple[socket.socket, bytes]:
        """A new connection and the server's nonce."""
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(5)
        sock.connect(str(self._path))
        self.run()
        return sock, sock.recv(protocol.HELLO_BYTES)[len(protocol.MAGIC) :]

    def replace_all_ranks(self) -> None:
        """Tells that new processes have taken the places of all ranks."""
        for rank in range(SIZE):
            self._fixed.rank_exited(rank, "was fuzzed")
        for rank in range(SIZE):
            self._fixed.rank_started(rank)
        self.run()

    def check_that_ranks_are_served(self) -> None:
        """Lets the ranks exchange their values."""
        values = [b"of rank %d" % rank for rank in range(SIZE)]
        socks = []
        for rank in range(SIZE):
            sock, nonce = self.connect()
            identity = Identity(Role.MEMBER, rank, SIZE, 0, 100 + rank)
            sock.sendall(protocol.proof(SECRET, nonce, identity))
            socks.append(sock)
        self.run()
        for sock, value in zip(socks, values, strict=True):
            assert len(sock.recv(protocol.MAC_BYTES)) == protocol.MAC_BYTES
            assert sock.recv(1000)[0] == FrameType.JOINED
            body = _exchange(0, 60000, 0) + value
            sock.sendall(protocol.frame(FrameType.EXCHANGE, body))
        self.run()
        result = protocol.frame(FrameType.RESULT, protocol.pack_values(values))
        for sock in socks:
            assert sock.recv(1000) == result
            sock.sendall(protocol.frame(FrameType.GOODBYE))
            sock.close()
        self.run()


def _exchange(number: int, timeout_ms: int, warning_ms: int) -> bytes:
    return protocol.EXCHANGE_HEADER.pack(number, timeout_ms, warning_ms)


def _frame(rng: random.Random) -> bytes:
    """A frame, of a rank or of the server; most of them make sense."""
    kind = rng.choice(list(FrameType))
    body = rng.randbytes(rng.choice((0, 1, 12, 40)))
    if kind == FrameType.EXCHANGE:
        times = rng.choice((0, 1, 60000)), rng.choice((0, 1, 0xFFFFFFFF))
        body = _exchange(rng.choice((0, 0, 1, 1 << 31)), *times) + body
    elif kind == FrameType.JOINED:
        body = protocol.pack_generation(rng.choice((0, 1, 1 << 31)))
    elif kind == FrameType.RESULT:
        body = protocol.pack_values([rng.randbytes(3) for _ in range(SIZE)])
    elif kind == FrameType.REPORT:
        told = protocol.Report(
            rng.choice(list(protocol.ReportKind)), rng.randrange(9)
        )
        body = protocol.pack_report(told)
    elif kind == FrameType.ERROR:
        names = b"StalledError MismatchError HvdError TypeError x __doc__"
        body = rng.choice(names.split()) + b"\n" + body
    frame = protocol.frame(kind, body)
    return frame if rng.random() < 0.5 else changed(frame, rng)


def _proof(rng: random.Random, nonce: bytes) -> bytes:
    numbers = (0, 1, SIZE, (1 << 32) - 1)
    identity = Identity(
        rng.choice(list(Role)),
        rng.choice(numbers) if rng.random() < 0.3 else rng.randrange(SIZE),
        rng.choice(numbers) if rng.random() < 0.2 else SIZE,
        rng.choice(numbers) if rng.random() < 0.2 else 0,
        rng.choice(numbers) if rng.random() < 0.2 else 100,
    )
    proof = protocol.proof(SECRET, nonce, identity)
    return proof if rng.random() < 0.9 else changed(proof, rng)


def _send_in_parts(
    server: Server, sock: socket.socket, data: bytes, rng: random.Random
) -> None:
    # It may have hung up, and rightly.
    with contextlib.suppress(OSError):
        while data:
            end = len(data) if rng.random() < 0.7 else rng.randint(1, len(data))
            sock.sendall(data[:end])
            data = data[end:]
            if rng.random() < 0.7:
                server.run()


def _bother(
    server: Server,
    rng: random.Random,
    proof: Callable[[random.Random, bytes], bytes],
) -> None:
    """Connects and sends nonsense; then new ranks must be served."""
    socks = []
    for _ in range(rng.randint(1, 6)):
        sock, nonce = server.connect()
        data = proof(rng, nonce)
        for _ in range(rng.randint(0, 4)):
            data += _frame(rng)
        _send_in_parts(server, sock, data, rng)
        # Some hang up now, before they were heard, others later.
        socks.append(sock)
        while socks and rng.random() < 0.4:
            socks.pop(rng.randrange(len(socks))).close()
            server.run()
    for sock in socks:
        sock.close()
    server.run()
    server.replace_all_ranks()
    server.check_that_ranks_are_served()
    server.close()


def test_server_survives_its_clients(folder: Path) -> None:
    def case(rng: random.Random) -> None:
        _bother(Server(folder), rng, _proof)

    tracemalloc.start()
    run_cases(case, 200)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


class _Nobody:
    """Hears of members, and does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


class ElasticCase(Server):
    """The same for an elastic job; replaced members have new numbers."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "socket"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(self._path))
        listener.listen(100)
        self._elastic = ElasticGenerations(
            _Nobody(), min_size=1, patience_seconds=60
        )
        self._server = RendezvousServer(
            listener, SECRET, self._elastic, lambda report: None
        )
        for number in range(SIZE):
            self._elastic.member_started(number, "host")

    def replace_all_ranks(self) -> None:
        for number in range(SIZE):
            self._elastic.member_ended(number, "was fuzzed", 0.0)
        for number in range(SIZE):
            self._elastic.member_started(SIZE + number, "host")
        self.run()

    def check_that_ranks_are_served(self) -> None:
        socks = []
        for number in range(SIZE):
            sock, nonce = self.connect()
            identity = Identity(Role.MEMBER, SIZE + number, 0, 0, 200 + number)
            sock.sendall(protocol.proof(SECRET, nonce, identity))
            self.run()
            assert len(sock.recv(protocol.MAC_BYTES)) == protocol.MAC_BYTES
            socks.append(sock)
        for rank, sock in enumerate(socks):
            frame = sock.recv(1000)
            assert frame[0] == FrameType.JOINED
            seat = protocol.unpack_seat(frame[protocol.FRAME_HEADER_BYTES :])
            assert seat == (rank, SIZE, rank, SIZE, 0, 1)
            sock.close()
        self.run()


def test_elastic_server_survives_its_members(folder: Path) -> None:
    def proof(rng: random.Random, nonce: bytes) -> bytes:
        role = rng.choice((Role.MEMBER, Role.MEMBER, Role.REPORTER))
        number = rng.randrange(SIZE + 1)
        generation = rng.choice((0, 0, 1))
        return protocol.proof(
            SECRET, nonce, Identity(role, number, 0, generation, 100)
        )

    def case(rng: random.Random) -> None:
        _bother(ElasticCase(folder), rng, proof)

    run_cases(case, 200)


def test_a_rank_that_hangs_up_after_its_proof_is_missed(folder: Path) -> None:
    server = Server(folder)
    for rank in range(SIZE):
        sock, nonce = server.connect()
        identity = Identity(Role.MEMBER, rank, SIZE, 0, 7)
        sock.sendall(protocol.proof(SECRET, nonce, identity))
        if rank == 0:
            sock.close()  # before the server has read it
        server.run()
    sock.setblocking(False)
    assert (
        b"PeerLostError\nRank 0 went away during `init()` (pid 7) before the "
        b"job was up."
    ) in sock.recv(1000)
    sock.close()
    server.replace_all_ranks()
    server.check_that_ranks_are_served()
    server.close()


def test_client_survives_its_server(folder: Path) -> None:
    path = str(folder / "socket")
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    identity = Identity(Role.MEMBER, 0, SIZE, 0, 1)

    def serve(answer: bytes) -> None:
        sock, _ = listener.accept()
        with sock, contextlib.suppress(OSError):
            sock.settimeout(5)
            nonce = protocol.new_nonce()
            sock.sendall(protocol.MAGIC + nonce)
            proof = sock.recv(protocol.PROOF_BYTES)
            sock.sendall(protocol.server_mac(SECRET, nonce, proof) + answer)

    def case(rng: random.Random) -> None:
        answer = b"".join(_frame(rng) for _ in range(rng.randint(0, 3)))
        if rng.random() < 0.8:
            joined = protocol.pack_generation(1)
            answer = protocol.frame(FrameType.JOINED, joined) + answer
        thread = threading.Thread(target=serve, args=(answer,))
        thread.start()
        with contextlib.suppress(HvdError):
            rendezvous = Rendezvous(path, SECRET, identity, timeout_seconds=5)
            try:
                assert len(rendezvous.exchange(b"value")) == SIZE
            finally:
                rendezvous.close()
        thread.join()

    run_cases(case, 300)
    listener.close()


def test_values_of_a_result_are_whole() -> None:
    body = protocol.pack_values([b"", b"ab", b"c" * 300])

    def case(rng: random.Random) -> None:
        size = rng.choice((0, 1, 2, 3, 1000))
        try:
            values = protocol.unpack_values(changed(body, rng), size)
        except HvdError:
            return
        assert len(values) == size

    run_cases(case, 3000)


def test_only_the_secret_proves() -> None:
    nonce = bytes(protocol.NONCE_BYTES)
    proof = protocol.proof(SECRET, nonce, Identity(Role.MEMBER, 1, 2, 3, 4))

    def case(rng: random.Random) -> None:
        other = changed(proof, rng)
        found = protocol.check_proof(SECRET, nonce, other)
        assert (found is None) == (other != proof)

    run_cases(case, 3000)
