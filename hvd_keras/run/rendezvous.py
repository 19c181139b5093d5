"""The rendezvous server's socket in the launcher.

The socket has no name in any directory by the time that ranks connect: they
come through /proc/PID/fd/N of the launcher, which only this user may enter.
So nothing is left behind, however the launcher ends.
"""

from __future__ import annotations

import os
import socket
import tempfile


def open_listener(backlog: int) -> tuple[socket.socket, str]:
    """Makes a listening Unix socket.

    Returns:
        The socket and the value of HVD_RENDEZVOUS that leads to it.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Socket names are short, so TMPDIR, which may be long, does not count.
    with tempfile.TemporaryDirectory(prefix="hvd-", dir="/tmp") as directory:
        path = os.path.join(directory, "rendezvous")
        listener.bind(path)
        listener.listen(backlog)
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    return listener, f"unix:/proc/{os.getpid()}/fd/{descriptor}"
