"""A connected socket that never blocks, with TLS or without."""

from __future__ import annotations

import errno
import selectors
import socket
from typing import TYPE_CHECKING

from hvd_keras._rendezvous import addresses, protocol

if TYPE_CHECKING:
    import ssl

_SILENT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH)


class Stream:
    """The bytes of one connection. Not thread-safe."""

    def __init__(
        self,
        sock: socket.socket,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Takes over `sock`.

        Args:
            sock: A connected socket, which may have TLS already.
            tls: Makes this the server of a TLS connection over TCP.
        """
        # What an operation raises that must wait.
        self._wants_write: tuple[type[OSError], ...] = (BlockingIOError,)
        self._wants_read: tuple[type[OSError], ...] = ()
        self.is_tcp = sock.family != socket.AF_UNIX
        self.origin = ""  # address of the other host; "": this host
        if self.is_tcp:
            addresses.tune(sock)
            self.origin = str(sock.getpeername()[0])
        sock.setblocking(False)
        if tls is not None and self.is_tcp:
            # The first send or receive shakes hands.
            sock = tls.wrap_socket(
                sock, server_side=True, do_handshake_on_connect=False
            )
        self.sock = sock
        if hasattr(sock, "pending"):
            import ssl

            self._wants_write = (BlockingIOError, ssl.SSLWantWriteError)
            self._wants_read = (ssl.SSLWantReadError,)
        # What to wait for before the next send; 0: nothing is left to send.
        self.send_event = 0
        self.has_timed_out = False  # the other host did not answer

    def fileno(self) -> int:
        """Returns its descriptor."""
        return self.sock.fileno()

    def receive(self, max_bytes: int) -> bytes | None:
        """Returns what has come; b"" if the other side hung up; else None."""
        try:
            return self.sock.recv(max_bytes)
        except (*self._wants_read, *self._wants_write):
            return None
        except OSError as error:
            self.has_timed_out = error.errno in _SILENT
            return b""

    def send(self, unsent: bytearray) -> bool:
        """Sends what it can of `unsent` and removes that.

        Returns:
            False if the other side hung up.
        """
        self.send_event = 0
        try:
            while unsent:
                num_sent = self.sock.send(unsent)
                del unsent[:num_sent]
        except self._wants_write:
            self.send_event = selectors.EVENT_WRITE
        except self._wants_read:
            self.send_event = selectors.EVENT_READ
        except OSError as error:
            self.has_timed_out = error.errno in _SILENT
            return False
        return True

    def has_more(self) -> bool:
        """Whether bytes wait here that no selector can see."""
        pending = getattr(self.sock, "pending", None)
        return pending is not None and pending() > 0

    def is_of_this_user(self) -> bool:
        """Whether the other side runs as this user, as far as one can tell."""
        return self.is_tcp or protocol.is_of_this_user(self.sock)

    def close(self) -> None:
        """Hangs up."""
        self.sock.close()
