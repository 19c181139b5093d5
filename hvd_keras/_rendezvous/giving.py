"""Hands over to the launcher what the function of a rank has returned.

After the proofs the rank sends the length and the bytes; the launcher stores
them and answers with one byte. It never looks into them.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import TYPE_CHECKING

from hvd_keras._rendezvous.client import Rendezvous
from hvd_keras._rendezvous.protocol import Identity, Role
from hvd_keras.exceptions import LaunchError

if TYPE_CHECKING:
    import ssl

HEADER = struct.Struct("!Q")  # length in bytes
STORED = b"\x01"


def give(
    address: str,
    secret: bytes,
    identity: Identity,
    value: bytes,
    *,
    timeout_seconds: float,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Sends `value` and returns when the launcher has stored it.

    Args:
        address: The address of the launcher's server.
        secret: The secret of the job.
        identity: The identity of this process.
        value: Any number of bytes.
        timeout_seconds: Limit for the connection, and for each silence.
        tls: What a TCP connection uses; None: no TLS.

    Raises:
        LaunchError: The launcher is gone, or cannot store it.
    """
    giver = dataclasses.replace(identity, role=Role.GIVER)
    server = Rendezvous(
        address, secret, giver, timeout_seconds=timeout_seconds, tls=tls
    )
    with server.detach() as sock:
        try:
            sock.settimeout(timeout_seconds)
            sock.sendall(HEADER.pack(len(value)))
            sock.sendall(value)
            answer = sock.recv(len(STORED))
        except OSError as error:
            raise _refused(len(value), str(error)) from error
    if answer != STORED:
        raise _refused(len(value), "it hung up")


def _refused(num_bytes: int, what: str) -> LaunchError:
    return LaunchError(
        f"hvdrun must store the result of this rank ({num_bytes} bytes). "
        f"Received: {what}."
    )
