"""Connections between the leaders of hosts."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from hvd_keras._job.hosts import links
from hvd_keras._rendezvous import protocol
from hvd_keras._rendezvous.protocol import Identity, Role
from hvd_keras.exceptions import LaunchError, PeerLostError, StalledError

SECRET = b"s" * 32


def leader(rank: int, generation: int = 1) -> Identity:
    return Identity(
        Role.LEADER, rank, 6, generation=generation, pid=1, host="b"
    )


class Meeting:
    """Rank 0 waits for the leaders of two hosts, ranks 2 and 4."""

    def __init__(self, seconds: float = 20.0) -> None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = listener.getsockname()[1]
        self.address = f"tcp:127.0.0.1:{self.port}"
        self.found: dict[int, socket.socket] = {}
        self.error: Exception | None = None
        self._rank_0 = threading.Thread(
            target=self._wait, args=(listener, seconds)
        )
        self._rank_0.start()

    def _wait(self, listener: socket.socket, seconds: float) -> None:
        try:
            self.found = links.accept_all(
                listener, SECRET, {2: 1, 4: 2}, 1, seconds, lambda: None
            )
        except StalledError as error:
            self.error = error

    def join(self, identity: Identity, secret: bytes = SECRET) -> socket.socket:
        return links.connect(self.address, secret, identity, 10.0)

    def end(self) -> None:
        self._rank_0.join(30.0)
        assert not self._rank_0.is_alive()


@contextlib.contextmanager
def joined(meeting: Meeting) -> Iterator[dict[int, socket.socket]]:
    """Both leaders come; the sockets carry bytes both ways."""
    ends = {1: meeting.join(leader(2)), 2: meeting.join(leader(4))}
    meeting.end()
    assert meeting.error is None
    assert meeting.found.keys() == {1, 2}
    for host, sock in meeting.found.items():
        sock.sendall(b"to leader")
        assert ends[host].recv(20) == b"to leader"
        ends[host].sendall(b"to rank 0")
        assert sock.recv(20) == b"to rank 0"
    yield meeting.found
    for sock in (*ends.values(), *meeting.found.values()):
        sock.close()


def test_leaders_of_other_hosts_are_let_in() -> None:
    with joined(Meeting()) as found:
        assert all(sock.gettimeout() is None for sock in found.values())


def test_strangers_do_not_keep_leaders_out() -> None:
    meeting = Meeting()
    silent = [
        socket.create_connection(("127.0.0.1", meeting.port))
        for _ in range(150)
    ]
    with pytest.raises(LaunchError, match="could not shake hands"):
        meeting.join(leader(2), bytes(32))
    odd = socket.create_connection(("127.0.0.1", meeting.port))
    odd.sendall(b"x" * protocol.PROOF_BYTES)
    with joined(meeting):
        pass
    for sock in (*silent, odd):
        sock.close()


def test_only_expected_leaders_of_this_generation_count() -> None:
    meeting = Meeting()
    others = [leader(2, generation=2), leader(3), leader(2), leader(2)]
    socks = [meeting.join(one) for one in others]
    for index in (0, 1, 3):  # they prove themselves, and are hung up on
        assert socks[index].recv(1) == b""
    socks.append(meeting.join(leader(4)))
    meeting.end()
    assert meeting.found.keys() == {1, 2}
    for sock in (*socks, *meeting.found.values()):
        sock.close()


def test_a_leader_that_does_not_come_is_named() -> None:
    meeting = Meeting(seconds=1.0)
    sock = meeting.join(leader(2))
    meeting.end()
    assert "Rank 4, the first of its host" in str(meeting.error)
    assert sock.recv(1) == b""  # nobody holds it any more
    sock.close()


def test_a_rank_zero_that_is_gone_is_not_waited_for() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    identity = Identity(Role.LEADER, 2, 4, generation=1, pid=1, host="b")
    started = time.monotonic()
    with pytest.raises(PeerLostError, match="Rank 0 is gone"):
        links.connect(f"tcp:127.0.0.1:{port}", b"s" * 32, identity, 60.0)
    assert time.monotonic() - started < 5
