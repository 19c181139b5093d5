"""The rendezvous server's socket in the launcher.

The socket's name is removed before any rank connects. Ranks connect through
/proc/PID/fd/N of the launcher, which only this user may enter. So nothing is
left behind, however the launcher ends.
"""

from __future__ import annotations

import os
import socket
import tempfile


def open_listener(backlog: int) -> tuple[socket.socket, str]:
    """Makes a listening Unix socket.

    Returns:
        The socket, and its address as a value of HVD_RENDEZVOUS.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Not TMPDIR, which may be long: socket names must be short.
    with tempfile.TemporaryDirectory(prefix="hvd-", dir="/tmp") as directory:
        path = os.path.join(directory, "rendezvous")
        listener.bind(path)
        listener.listen(backlog)
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    return listener, f"unix:/proc/{os.getpid()}/fd/{descriptor}"
