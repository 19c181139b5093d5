"""Lets peers in that know the secret of the job."""

from __future__ import annotations

import socket

from hvd_keras._rendezvous import protocol
from hvd_keras._rendezvous.protocol import Identity
from hvd_keras._rendezvous.server import Server
from hvd_keras._rendezvous.stream import Stream


class Door:
    """Hands over connections whose two sides have proved themselves."""

    def __init__(
        self, listener: socket.socket, secret: bytes, num_guests: int
    ) -> None:
        """Takes over `listener`; so many guests are expected."""
        self._came: list[tuple[Identity, socket.socket]] = []
        self._server = Server(
            listener, secret, num_guests=num_guests, on_agent=self._take
        )

    def next_guest(
        self, seconds: float
    ) -> tuple[Identity, socket.socket] | None:
        """Returns who has come, and a blocking socket; None: nobody has.

        It may return None before the time is over.
        """
        if not self._came:
            self._server.step(seconds)
        return self._came.pop(0) if self._came else None

    def close(self) -> None:
        """Closes the listener, and hangs up on those who were not asked in."""
        self._server.close()
        for _, sock in self._came:
            sock.close()

    def _take(self, identity: Identity, stream: Stream, unsent: bytes) -> None:
        try:
            stream.sock.settimeout(protocol.HANDSHAKE_SECONDS)
            stream.sock.sendall(unsent)
            stream.sock.settimeout(None)
        except OSError:  # it has hung up
            stream.close()
        else:
            self._came.append((identity, stream.sock))
