"""Runs the rendezvous server in a thread of rank 0 if there is no hvdrun.

Ranks that torchrun, mpiexec or srun started have no channel that we could use,
but they know the name of their job. The file name of the server's socket is a
digest of it. Only this user can enter the socket's directory, and the server
refuses other users too. When all ranks are in, the socket file is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import stat
import threading

from hvd_keras._job.bootstrap.server import ExchangeServer
from hvd_keras.exceptions import LaunchError


def secret_of(job_identity: str) -> bytes:
    """Returns a key that separates jobs; the directory keeps others out."""
    return hashlib.sha256(b"hvd_keras job\n" + job_identity.encode()).digest()


def socket_path(job_identity: str) -> str:
    """Returns the path where the server of the job listens."""
    name = hashlib.sha256(job_identity.encode())
    return os.path.join(_private_directory(), name.hexdigest()[:32])


def _private_directory() -> str:
    parent = os.environ.get("XDG_RUNTIME_DIR", "")
    uid = os.getuid()
    path = f"/tmp/hvd-{uid}"
    if os.path.isdir(parent) and os.access(parent, os.W_OK):
        path = os.path.join(parent, "hvd")
    if not os.path.lexists(path):
        with contextlib.suppress(FileExistsError):  # a rank was faster
            os.mkdir(path, 0o700)
    found = os.lstat(path)
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or mode & 0o77:
        raise LaunchError(
            f"{path!r} must be a directory of user {uid} with mode 0700. "
            f"Received: user {found.st_uid}, mode {mode:04o}."
        )
    return path


def serve(path: str, secret: bytes, size: int, last_epoch: int) -> None:
    """Starts the server of the next epoch; it ends when all ranks are in.

    Args:
        path: Where it listens.
        secret: The secret of the job.
        size: Number of ranks in the job.
        last_epoch: The last epoch that this process was in.

    Raises:
        LaunchError: Another live job uses the same name.
    """
    global _running
    if _running is not None and _running.goes_on(path, last_epoch + 1):
        return
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    own_path = f"{path}.{os.getpid()}"
    listener.bind(own_path)
    listener.listen(size)
    try:
        _refuse_second_server(path)
        os.rename(own_path, path)  # replaces what a crashed job left
    except BaseException:
        listener.close()
        os.unlink(own_path)
        raise
    server = ExchangeServer(listener, secret, size, last_epoch=last_epoch)
    _running = _ServerThread(server, path, last_epoch + 1)
    _running.start()


class _ServerThread(threading.Thread):
    """Runs the server until all ranks are in the last requested epoch."""

    def __init__(self, server: ExchangeServer, path: str, epoch: int) -> None:
        super().__init__(name="hvd_keras rendezvous", daemon=True)
        self._server = server
        self._path = path
        self._pid = os.getpid()
        self._inode = os.stat(path).st_ino
        self._lock = threading.Lock()
        self._last_epoch = epoch
        self._has_ended = False

    def goes_on(self, path: str, epoch: int) -> bool:
        """Makes it serve `epoch` too; returns False if it cannot."""
        if self._pid != os.getpid() or self._path != path:
            return False
        with self._lock:
            self._last_epoch = epoch
            return not self._has_ended

    def run(self) -> None:
        while not self._ends():
            self._server.step(None)
        try:
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        except OSError:
            pass  # somebody else has removed it
        self._server.close()

    def _ends(self) -> bool:
        with self._lock:
            self._has_ended = self._server.is_done(self._last_epoch)
            return self._has_ended


_running: _ServerThread | None = None


def _refuse_second_server(path: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return
    raise LaunchError(
        "The name of a job must be unique: rank 0 of another live job of this "
        "user serves under the same name. Give this job another MASTER_PORT, "
        "or start it with hvdrun."
    )
