"""Connections between the leaders of hosts, a star around that of rank 0.

Both sides prove that they know the job's secret before anything else is read.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from hvd_keras._rendezvous import addresses, protocol
from hvd_keras._rendezvous.door import Door
from hvd_keras._rendezvous.protocol import Identity
from hvd_keras.exceptions import LaunchError, PeerLostError, StalledError

_RETRY_SECONDS = 0.05
_GONE = 0.5  # seconds of refused connections


def accept_all(
    listener: socket.socket,
    secret: bytes,
    expected: dict[int, int],
    generation: int,
    seconds: float,
    check: Callable[[], None],
) -> dict[int, socket.socket]:
    """Waits for the leaders of the other hosts.

    Args:
        listener: A listening socket, which is closed at the end.
        secret: The secret of the job.
        expected: The host of each leader, by its rank.
        generation: The generation that they must have joined.
        seconds: How long to wait.
        check: Called often; raises if waiting is in vain.

    Returns:
        A connected socket for each host in `expected`.

    Raises:
        StalledError: A leader did not come in time.
    """
    deadline = time.monotonic() + seconds
    door = Door(listener, secret, len(expected))
    found: dict[int, socket.socket] = {}
    try:
        while len(found) < len(expected):
            check()
            guest = door.next_guest(_RETRY_SECONDS)
            if guest is not None:
                identity, sock = guest
                host = expected.get(identity.rank)
                is_late = identity.generation != generation
                if host is None or host in found or is_late:
                    sock.close()
                else:
                    found[host] = sock
            if time.monotonic() > deadline:
                missing = [r for r, h in expected.items() if h not in found]
                raise StalledError(
                    f"Rank {missing[0]}, the first of its host, did not "
                    f"connect to rank 0 within {seconds:g} s "
                    "(HVD_START_TIMEOUT). Does a firewall refuse connections "
                    "between the hosts?"
                )
    except BaseException:
        for sock in found.values():
            sock.close()
        raise
    finally:
        door.close()
    return found


def connect(
    address: str,
    secret: bytes,
    identity: Identity,
    seconds: float,
) -> socket.socket:
    """Connects to the leader of host 0.

    Args:
        address: Where it listens, as in `addresses`.
        secret: The secret of the job.
        identity: Of this rank.
        seconds: How long to try.

    Returns:
        A connected socket; each side has proved itself to the other.

    Raises:
        LaunchError: It cannot be reached, or does not know the secret.
        PeerLostError: Nobody listens there any more.
    """
    started = time.monotonic()
    while True:
        waited = time.monotonic() - started
        try:
            sock = addresses.connect(address, seconds)
            break
        except OSError as error:
            # Rank 0 had begun to listen before it told the address.
            if isinstance(error, ConnectionRefusedError) and waited > _GONE:
                raise PeerLostError(
                    "Rank 0 is gone: nobody listens at "
                    f"{address.removeprefix('tcp:')} any more."
                ) from None
            if waited > seconds:
                raise LaunchError(
                    f"Rank {identity.rank} cannot connect to rank 0 at "
                    f"{address.removeprefix('tcp:')}: {error}. Hosts must "
                    "reach each other at any port; HVD_INTERFACE names the "
                    "network."
                ) from None
        time.sleep(_RETRY_SECONDS)
    try:
        sock.settimeout(protocol.HANDSHAKE_SECONDS)
        hello = _read(sock, protocol.HELLO_BYTES)
        nonce = hello[len(protocol.MAGIC) :]
        message = protocol.proof(secret, nonce, identity)
        sock.sendall(message)
        mac = _read(sock, protocol.MAC_BYTES)
        if hello[
            : len(protocol.MAGIC)
        ] != protocol.MAGIC or mac != protocol.server_mac(
            secret, nonce, message
        ):
            raise OSError("it did not prove itself")
        sock.settimeout(None)
    except OSError as error:
        sock.close()
        raise LaunchError(
            f"Rank {identity.rank} could not shake hands with rank 0 at "
            f"{address.removeprefix('tcp:')}: {error}."
        ) from None
    return sock


def _read(sock: socket.socket, num_bytes: int) -> bytes:
    data = b""
    deadline = time.monotonic() + protocol.HANDSHAKE_SECONDS
    while len(data) < num_bytes:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        part = sock.recv(num_bytes - len(data))
        if not part:
            raise ConnectionError("it hung up")
        data += part
    return data
