"""The rendezvous refuses strangers, and they harm nobody."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rendezvous_server import (
    SECRET,
    SIZE,
    Served,
    exchange_all,
    is_hung_up,
    read,
    serving,
)

from hvd_keras._rendezvous import addresses, protocol
from hvd_keras._rendezvous.client import Rendezvous
from hvd_keras._rendezvous.protocol import FrameType, Identity, Role
from hvd_keras.exceptions import LaunchError, PeerLostError


@pytest.fixture(params=["unix", "tcp"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path if request.param == "unix" else None, SIZE) as found:
        yield found


def test_wrong_secret_is_refused(served: Served) -> None:
    for secret in (bytes(32), SECRET[:-1] + b"\0", b""):
        with pytest.raises(LaunchError, match="HVD_SECRET"):
            served.join(1, secret=secret)
    exchange_all(served)


def test_client_refuses_a_server_without_the_secret(tmp_path: Path) -> None:
    path = f"/tmp/impostor.{os.getpid()}"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    heard = []

    def serve() -> None:
        sock, _ = listener.accept()
        sock.sendall(protocol.MAGIC + bytes(protocol.NONCE_BYTES))
        proof = read(sock, protocol.PROOF_BYTES)
        # Its own MAC, sent back to it, must not convince it.
        sock.sendall(proof[-protocol.MAC_BYTES :])
        heard.append(sock.recv(100))

    thread = threading.Thread(target=serve)
    thread.start()
    identity = Identity(Role.MEMBER, 0, SIZE, 1, 1)
    with pytest.raises(LaunchError, match="must know HVD_SECRET"):
        Rendezvous(path, SECRET, identity, timeout_seconds=5)
    thread.join(5)
    os.unlink(path)
    listener.close()
    assert heard == [b""]


def test_replayed_and_altered_proofs_are_refused(served: Served) -> None:
    sock = served.raw()
    nonce = read(sock, protocol.HELLO_BYTES)[len(protocol.MAGIC) :]
    identity = Identity(Role.MEMBER, 0, SIZE, 1, 1)
    proof = protocol.proof(SECRET, nonce, identity)
    replay = served.raw()
    replay.sendall(proof)
    assert is_hung_up(replay)
    for at in range(0, protocol.PROOF_BYTES, 7):
        altered = bytearray(proof)
        altered[at] ^= 1
        other = served.raw()
        other.sendall(altered)
        assert is_hung_up(other), at
    sock.close()
    exchange_all(served)


@pytest.mark.parametrize("junk", [b"\0", b"\xff", b"GET / HTTP/1.1\r\n\r\n"])
def test_garbage_is_refused_without_an_answer(
    served: Served, junk: bytes
) -> None:
    sock = served.raw()
    read(sock, protocol.HELLO_BYTES)
    with contextlib.suppress(ConnectionError):
        sock.sendall(junk * 10000)
    sock.settimeout(10)
    with contextlib.suppress(ConnectionError):
        assert sock.recv(1) == b""
    exchange_all(served)


def test_random_bytes_do_no_harm(served: Served) -> None:
    for _ in range(100):
        with served.raw() as sock, contextlib.suppress(ConnectionError):
            sock.sendall(os.urandom(200))
    for number in range(20):
        sock = served.proved(number % SIZE)
        with contextlib.suppress(ConnectionError):
            sock.sendall(os.urandom(500))
        sock.close()
    exchange_all(served)


def test_truncated_handshakes_do_no_harm(served: Served) -> None:
    for num_bytes in range(0, protocol.PROOF_BYTES, 5):
        sock = served.raw()
        sock.sendall(b"p" * num_bytes)
        sock.close()
    exchange_all(served)


@pytest.mark.parametrize("length", [1 << 17, 1 << 31, (1 << 32) - 1])
def test_oversized_frame_is_refused_before_it_is_stored(
    served: Served, length: int
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sock = served.proved(0)
    sock.sendall(struct.pack("!BI", FrameType.EXCHANGE, length))
    with contextlib.suppress(ConnectionError):
        for _ in range(100):
            sock.sendall(bytes(1 << 16))
    assert is_hung_up(sock)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 20 << 10  # KiB
    exchange_all(served)


@pytest.mark.parametrize(
    "frame",
    [
        protocol.frame(FrameType.EXCHANGE, b"short"),
        protocol.frame(
            FrameType.EXCHANGE, protocol.EXCHANGE_HEADER.pack(5, 1000, 0)
        ),
        protocol.frame(FrameType.RESULT, b"not for ranks to say"),
        b"\x63\0\0\0\0",
    ],
)
def test_invalid_frame_ends_that_membership_alone(
    served: Served, frame: bytes
) -> None:
    sock = served.proved(0)
    sock.sendall(frame)
    assert is_hung_up(sock)
    with pytest.raises(PeerLostError, match="Rank 0"):
        served.join(1).exchange(b"")
    exchange_all(served)


@pytest.mark.timed
@pytest.mark.thorough
def test_slow_client_is_dropped_and_delays_nobody(
    served: Served,
) -> None:
    started = time.monotonic()
    sock = served.raw()
    read(sock, protocol.HELLO_BYTES)
    exchange_all(served)
    assert time.monotonic() - started < 2
    closed_after = None
    with contextlib.suppress(ConnectionError):
        while time.monotonic() - started < 10:
            sock.sendall(b"s")
            time.sleep(0.2)
    closed_after = time.monotonic() - started
    assert 4 < closed_after < 7
    exchange_all(served)


def test_many_idle_connections_keep_no_rank_out(served: Served) -> None:
    idle = []
    for _ in range(150):
        with contextlib.suppress(BlockingIOError, TimeoutError):
            idle.append(addresses.connect(served.path, 0.01))
    started = time.monotonic()
    for _ in range(2):
        exchange_all(served)
    for sock in idle:
        sock.close()
    assert time.monotonic() - started < 4
