"""What `hvdrun --check -H` finds out on a host, and between two."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import socket
import time
from typing import Any

from hvd_keras._common.version import package_version, versions
from hvd_keras._rendezvous import addresses, interfaces
from hvd_keras._rendezvous.client import Rendezvous
from hvd_keras._rendezvous.door import Door
from hvd_keras._rendezvous.listener import listen_tcp
from hvd_keras._rendezvous.protocol import Identity, Role
from hvd_keras.exceptions import LaunchError

_NUM_ROUND_TRIPS = 200
_SENDING_SECONDS = 1.0
_WAIT_SECONDS = 8.0
_PIECE = bytes(256 << 10)
_PING = b"ping"
_END = b"e"


@dataclasses.dataclass(frozen=True)
class Speed:
    """What one host measures towards another one."""

    round_trip_seconds: float  # median
    bytes_per_second: float


def facts() -> dict[str, Any]:
    """Returns the versions on this host and its clock."""
    found = {
        "Python": platform.python_version(),
        "hvd_keras": package_version(),
    }
    for library, version in versions().items():
        found[library] = version.get("installed") or "none"
    return {"versions": found, "time": time.time()}


class SpeedServer:
    """One end of a measurement: it answers, and swallows what comes."""

    def __init__(self, peer: str, secret: bytes) -> None:
        """Listens where `peer`, a name or an address, can connect to."""
        own = interfaces.address_towards(peer)
        self._listener = listen_tcp(own, 0, 4)
        self._secret = secret
        port = self._listener.getsockname()[1]
        self.address = addresses.of_tcp(own, port)

    def serve(self) -> None:
        """Serves one peer that knows the secret; blocks for a few seconds."""
        with self._proved() as sock:
            for _ in range(_NUM_ROUND_TRIPS):
                sock.sendall(_read(sock, len(_PING)))
            buffer = bytearray(len(_PIECE))
            while sock.recv_into(buffer):
                pass
            sock.sendall(_END)

    def _proved(self) -> socket.socket:
        door = Door(self._listener, self._secret, 1)
        deadline = time.monotonic() + _WAIT_SECONDS
        with contextlib.closing(door):
            while (left := deadline - time.monotonic()) > 0:
                if guest := door.next_guest(left):
                    guest[1].settimeout(_WAIT_SECONDS)
                    return guest[1]
        raise LaunchError("Nobody has come to the measurement.")


def measure(address: str, secret: bytes) -> Speed:
    """Returns the speed towards a `SpeedServer`; blocks for a second or so.

    Raises:
        HvdError: It cannot be reached, or is a stranger's.
        OSError: The connection broke.
    """
    identity = Identity(Role.AGENT, 0, 1, 0, os.getpid())
    sock = Rendezvous(
        address, secret, identity, timeout_seconds=_WAIT_SECONDS
    ).detach()
    with sock:
        sock.settimeout(_WAIT_SECONDS)
        times = []
        for _ in range(_NUM_ROUND_TRIPS):
            started = time.perf_counter()
            sock.sendall(_PING)
            _read(sock, len(_PING))
            times.append(time.perf_counter() - started)
        started, num_bytes = time.perf_counter(), 0
        while time.perf_counter() - started < _SENDING_SECONDS:
            sock.sendall(_PIECE)
            num_bytes += len(_PIECE)
        sock.shutdown(socket.SHUT_WR)
        _read(sock, len(_END))  # all has arrived
        seconds = time.perf_counter() - started
    return Speed(sorted(times)[len(times) // 2], num_bytes / seconds)


def _read(sock: socket.socket, num_bytes: int) -> bytes:
    data = b""
    while len(data) < num_bytes:
        part = sock.recv(num_bytes - len(data))
        if not part:
            raise ConnectionError("the other side hung up")
        data += part
    return data
