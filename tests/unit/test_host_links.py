"""Connections between the leaders of hosts."""

from __future__ import annotations

import socket
import time

import pytest

from hvd_keras._job.bootstrap.wire import Identity, Role
from hvd_keras._job.hosts import links
from hvd_keras.exceptions import PeerLostError


def test_a_rank_zero_that_is_gone_is_not_waited_for() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    identity = Identity(Role.LEADER, 2, 4, epoch=1, pid=1, host="b")
    started = time.monotonic()
    with pytest.raises(PeerLostError, match="Rank 0 is gone"):
        links.connect(f"tcp:127.0.0.1:{port}", b"s" * 32, identity, 60.0)
    assert time.monotonic() - started < 5
