"""The ranks of several hosts meet at a TCP port."""

from __future__ import annotations

import dataclasses
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import certificates
import jobs
import pytest
from rendezvous_server import (
    SECRET,
    SIZE,
    Served,
    exchange_all,
    outcomes,
    read,
    serving,
)

from hvd_keras._rendezvous import addresses, protocol, tls
from hvd_keras._rendezvous.client import Rendezvous
from hvd_keras._rendezvous.listener import listen_tcp
from hvd_keras._rendezvous.stream import Stream
from hvd_keras.config import Config
from hvd_keras.exceptions import LaunchError, PeerLostError, StalledError


@pytest.fixture
def served() -> Iterator[Served]:
    with serving(None, SIZE) as found:
        yield found


def test_all_ranks_get_all_values_in_every_generation(served: Served) -> None:
    assert [exchange_all(served) for _ in range(3)] == [1, 2, 3]


def test_ipv6_works() -> None:
    listener = listen_tcp("::1", 0, 5)
    host, port, *_ = listener.getsockname()
    address = addresses.of_tcp(host, port)
    assert address == f"tcp:[::1]:{port}"
    with addresses.connect(address, 5) as client:
        served, _ = listener.accept()
        served.sendall(b"x")
        assert client.recv(1) == b"x"
        assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        served.close()
    listener.close()


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_server_refuses_the_wildcard_address(address: str) -> None:
    with pytest.raises(LaunchError, match="wildcard"):
        listen_tcp(address, 0, 1)


def test_lost_rank_is_named_with_host_and_pid(served: Served) -> None:
    def join_and_leave() -> None:
        sock = served.raw()
        nonce = read(sock, protocol.HELLO_BYTES)[len(protocol.MAGIC) :]
        identity = dataclasses.replace(served.identity(2), host="b\u00e9\n")
        sock.sendall(protocol.proof(SECRET, nonce, identity))
        read(sock, protocol.MAC_BYTES + protocol.FRAME_HEADER_BYTES)
        sock.close()

    first, second, _ = outcomes(
        lambda: served.join(0).exchange(b""),
        lambda: served.join(1).exchange(b""),
        join_and_leave,
    )
    for error in (first, second):
        assert isinstance(error, PeerLostError)
        assert "Rank 2 went away" in str(error)
        assert "(host b\u00e9?, pid 102)" in str(error)


def test_lost_server_is_named_by_its_address() -> None:
    listener = listen_tcp("127.0.0.1", 0, 5)
    address = addresses.of_tcp(*listener.getsockname())
    identity = protocol.Identity(protocol.Role.MEMBER, 1, 2, 0, 7)

    def hang_up() -> None:
        sock, _ = listener.accept()
        sock.sendall(protocol.MAGIC + bytes(protocol.NONCE_BYTES))
        read(sock, protocol.PROOF_BYTES)
        listener.close()
        sock.close()

    lost, _ = outcomes(
        lambda: Rendezvous(address, SECRET, identity, timeout_seconds=5),
        hang_up,
    )
    assert isinstance(lost, PeerLostError)
    assert f"hvdrun ({address})" in str(lost)
    with pytest.raises(LaunchError, match="firewall"):
        Rendezvous(address, SECRET, identity, timeout_seconds=5)
    with pytest.raises(StalledError, match="rank 0 called"):
        Rendezvous(
            address, SECRET, identity, timeout_seconds=0.3, is_of_rank_0=True
        )


def test_flood_from_one_host_pushes_out_no_rank_of_another(
    served: Served,
) -> None:
    host_port = addresses.host_and_port(served.path)
    assert host_port is not None
    slow = served.raw()
    nonce = read(slow, protocol.HELLO_BYTES)[len(protocol.MAGIC) :]
    flood = [
        socket.create_connection(host_port, 5, ("127.0.0.2", 0))
        for _ in range(150)
    ]
    read(flood[-1], protocol.HELLO_BYTES)  # all were accepted
    slow.sendall(protocol.proof(SECRET, nonce, served.identity(0)))
    read(slow, protocol.MAC_BYTES)
    for sock in (*flood, slow):
        sock.close()


# ---- TLS ----


@pytest.fixture(scope="module")
def tls_config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    folder = tmp_path_factory.mktemp("tls")
    return Config.from_environ(certificates.make(folder))


@pytest.fixture
def served_tls(tls_config: Config) -> Iterator[Served]:
    server = tls.context(tls_config, is_server=True)
    client = tls.context(tls_config, is_server=False)
    assert server is not None
    assert client is not None
    found = Served(tls=(server, client))
    yield found
    found.close()


def test_ranks_meet_over_tls(served_tls: Served) -> None:
    with served_tls.raw() as sock:
        assert isinstance(sock, ssl.SSLSocket)
        assert sock.version() == "TLSv1.3"
    value = b"v" * protocol.MAX_VALUE_BYTES

    def rank(number: int) -> list[bytes]:
        with served_tls.join(number) as rendezvous:
            return rendezvous.exchange(value)

    calls = [lambda n=n: rank(n) for n in range(SIZE)]
    assert outcomes(*calls) == [[value] * SIZE] * SIZE


def test_tls_refuses_who_shows_no_certificate_or_speaks_none(
    served_tls: Served, tls_config: Config
) -> None:
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.check_hostname = False
    stranger.load_verify_locations(tls_config.tls_ca)
    with pytest.raises(LaunchError, match="HVD_TLS_CERT"):
        served_tls.join(0, tls=stranger)
    with pytest.raises((LaunchError, PeerLostError)):
        served_tls.join(0, tls=None)
    for _ in range(20):
        with addresses.connect(served_tls.path, 5) as sock:
            sock.sendall(os.urandom(300))
    exchange_all(served_tls)


def test_handshake_that_ends_while_the_server_reads_is_noticed(
    served_tls: Served, tls_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tls.context(tls_config, is_server=False)
    assert client is not None
    receive = Stream.receive

    def receive_late(stream: Stream, max_bytes: int) -> bytes | None:
        time.sleep(0.05)  # by then the client's last message has come
        return receive(stream, max_bytes)

    monkeypatch.setattr(Stream, "receive", receive_late)
    sock = addresses.connect(served_tls.path, 2)
    time.sleep(0.2)  # the server waits for the client's first message
    with client.wrap_socket(sock) as wrapped:
        assert read(wrapped, protocol.HELLO_BYTES).startswith(protocol.MAGIC)


def test_client_refuses_a_server_of_another_authority(
    tmp_path: Path, served_tls: Served
) -> None:
    other = Config.from_environ(certificates.make(tmp_path / "other"))
    with pytest.raises(LaunchError, match="HVD_TLS_CA"):
        served_tls.join(0, tls=tls.context(other, is_server=False))
    exchange_all(served_tls)


# ---- Rank 0 serves ----

_MEET = """
    import os, sys
    from hvd_keras import _rendezvous
    from hvd_keras.config import Config
    config = Config.from_environ(os.environ)
    topology = _rendezvous.detect(os.environ)
    for generation in range(2):
        with _rendezvous.join(topology, config, generation, print) as meeting:
            print(meeting.exchange(b"%d" % topology.rank))
"""


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _start(rank: int, **extra: str) -> subprocess.Popen[str]:
    environ = {
        "OMPI_COMM_WORLD_RANK": str(rank),
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
        "HVD_START_TIMEOUT": "10",
        **extra,
    }
    return subprocess.Popen(
        jobs.python(_MEET),
        env=jobs.clean_environ(**environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_rank_0_serves_at_the_port_that_all_know(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET.hex() + "\n")
    secret.chmod(0o600)
    extra = {
        "HVD_RENDEZVOUS": f"tcp:localhost:{_free_port()}",
        "HVD_SECRET_FILE": str(secret),
        **certificates.make(tmp_path),
    }
    ranks = [_start(rank, **extra) for rank in (1, 0)]
    for rank in ranks:
        stdout, stderr = rank.communicate(timeout=20)
        assert stdout.splitlines() == ["[b'0', b'1']"] * 2, stderr


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({}, "tcp:HOST:PORT"),
        ({"HVD_RENDEZVOUS": "tcp:localhost:9"}, "openssl rand -hex 32"),
        ({"HVD_RENDEZVOUS": "tcp:localhost"}, "tcp:HOST:PORT"),
    ],
)
def test_several_hosts_need_an_address_and_a_secret(
    extra: dict[str, str], text: str
) -> None:
    rank = _start(0, **extra)
    _, stderr = rank.communicate(timeout=20)
    assert rank.returncode == 1
    assert text in stderr.splitlines()[-1]
