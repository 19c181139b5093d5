"""Finds the rendezvous server and connects to it."""

from __future__ import annotations

import errno
import socket
import time

from hvd_keras._rendezvous import addresses, announcement
from hvd_keras.exceptions import LaunchError

_RETRY_SECONDS = 0.02


def announced_address(path: str) -> str:
    """Returns where rank 0 serves, as the announcement at `path` says.

    Raises:
        LaunchError: There is none, or its process has ended.
    """
    found = announcement.read(path)
    if found is None:
        raise LaunchError(f"Rank 0 must announce its server in {path!r}.")
    if not found.is_alive():
        raise LaunchError(
            f"Rank 0 must announce its server in {path!r}. Received: that of "
            f"a process which has ended (pid {found.pid})."
        )
    return found.address


def connect(address: str, deadline: float) -> socket.socket:
    """Returns a connection to the server at `address`.

    Raises:
        LaunchError: There is none.
    """
    while True:
        left = max(_RETRY_SECONDS, deadline - time.monotonic())
        try:
            return addresses.connect(address, left)
        except OSError as error:
            crowded = isinstance(error, BlockingIOError)  # a full backlog
            if not crowded or time.monotonic() >= deadline:
                raise LaunchError(
                    f"A rendezvous server must listen at {address!r}. "
                    f"Received: {error}. {_cure(error, address)}"
                ) from error
        time.sleep(_RETRY_SECONDS)


def _cure(error: OSError, address: str) -> str:
    if addresses.is_tcp(address):
        return (
            "Has the job ended? All hosts must be able to connect to that "
            "port: no firewall may be between them."
        )
    if error.errno == errno.EACCES:
        return (
            "All ranks must run as one user, in one user namespace (one "
            "container)."
        )
    return (
        "Has the job ended? All ranks must see the same /proc: run them in "
        "one container."
    )
