"""The rendezvous server's sockets.

A Unix socket's name is removed before any rank connects. Ranks connect through
/proc/PID/fd/N of the server's process, which only this user may enter. So
nothing is left behind, however that process ends.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import secrets
import socket
import tempfile
from collections.abc import Iterator

from hvd_keras._rendezvous import addresses
from hvd_keras.exceptions import LaunchError


class Listener:
    """A listening Unix socket, and how to reach it.

    Attributes:
        socket: The socket, which the caller closes.
        address: A path to connect to, or "@" and an abstract name.
    """

    def __init__(self, backlog: int) -> None:
        """Listens; any directory that can be written will do.

        Raises:
            OSError: This process has no descriptors left.
        """
        self._descriptor: int | None = None
        for directory in writable_directories():
            try:
                self.socket, self._descriptor = _bind_in(directory)
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise
                continue  # it is full, or keeps no sockets
            self.address = f"/proc/{os.getpid()}/fd/{self._descriptor}"
            break
        else:
            # An abstract name needs no file. Other users can see it, but the
            # server refuses them.
            name = f"hvd-{secrets.token_hex(16)}"
            self.socket = _new_socket()
            self.socket.bind(f"\0{name}")
            self.address = f"@{name}"
        self.socket.listen(backlog)

    def close_address(self) -> None:
        """Frees what the address needs; nobody can connect any more."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def listen_tcp(host: str, port: int, backlog: int) -> socket.socket:
    """Returns a TCP socket that listens at one address of this host.

    Args:
        host: An address, never the wildcard.
        port: The port; 0 takes a free one.
        backlog: How many connections may wait.

    Raises:
        LaunchError: The address is not this host's, or the port is taken.
    """
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        raise LaunchError(
            "The rendezvous must listen at one address. Received: the "
            f"wildcard address {host}."
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Connections of the last job may linger at the port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise LaunchError(
            "The rendezvous must be able to listen at "
            f"{addresses.of_tcp(host, port)}. Received: {error.strerror}. "
            "Choose another port, or another address with HVD_INTERFACE."
        ) from None
    return sock


def writable_directories() -> Iterator[str]:
    """Yields the directories for short-lived files that may be written."""
    for path in (
        os.environ.get("XDG_RUNTIME_DIR", ""),
        "/tmp",
        os.environ.get("TMPDIR", ""),
        "/var/tmp",
        "/dev/shm",
    ):
        if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK):
            yield path


def _new_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


def _bind_in(directory: str) -> tuple[socket.socket, int]:
    """Binds a socket to a file; returns both, after the name is removed."""
    with contextlib.ExitStack() as undo:
        sock = _new_socket()
        undo.callback(sock.close)
        own = tempfile.mkdtemp(prefix="hvd-", dir=directory)
        undo_names = undo.enter_context(contextlib.ExitStack())
        undo_names.callback(os.rmdir, own)
        # The names of sockets must be short. This one is, in any directory.
        folder = os.open(own, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        undo_names.callback(os.close, folder)
        path = f"/proc/self/fd/{folder}/rendezvous"
        sock.bind(path)
        undo_names.callback(os.unlink, path)
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        undo_names.close()
        undo.pop_all()
        return sock, descriptor
