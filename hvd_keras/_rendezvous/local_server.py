"""Runs the rendezvous server in a thread of rank 0 if there is no hvdrun.

Ranks on several hosts know the TCP port where rank 0 serves, and a secret. On
one host, ranks that torchrun, mpiexec or srun started have no channel that we
could use, but they know the name of their job. A digest of it is the name of
the file that says where the server listens. Only this user can enter the file's
directory, and the server refuses other users too. When all ranks are in, the
file is removed.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import stat
import threading
import time

from hvd_keras._rendezvous import addresses, announcement, interfaces, tls
from hvd_keras._rendezvous.fixed_generations import FixedGenerations
from hvd_keras._rendezvous.listener import (
    Listener,
    listen_tcp,
    writable_directories,
)
from hvd_keras._rendezvous.server import Server
from hvd_keras.config import Config
from hvd_keras.exceptions import LaunchError

# For the answers to the other ranks, when this process ends.
_LAST_WORDS_SECONDS = 1.0
_PROBE_SECONDS = 1.0
_SPARE_BACKLOG = 64


def secret_of(job_identity: str) -> bytes:
    """Returns a key that separates jobs; the directory keeps others out."""
    return hashlib.sha256(b"hvd_keras job\n" + job_identity.encode()).digest()


def announcement_path(job_identity: str) -> str:
    """Returns the path of the file that says where the job's server listens."""
    name = hashlib.sha256(job_identity.encode())
    return os.path.join(_private_directory(), name.hexdigest()[:32])


def _private_directory() -> str:
    uid = os.getuid()
    parent = next(writable_directories(), None)
    if parent is None:
        raise LaunchError(
            "The ranks must share a directory that they can write, so that "
            "they find each other. Received: none of $XDG_RUNTIME_DIR, /tmp, "
            "$TMPDIR, /var/tmp and /dev/shm is one. Set TMPDIR, or start the "
            "ranks with hvdrun."
        )
    path = os.path.join(parent, f"hvd-{uid}")
    if not os.path.lexists(path):
        with contextlib.suppress(FileExistsError):  # a rank was faster
            os.mkdir(path, 0o700)
    found = os.lstat(path)
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != uid or mode & 0o77:
        raise LaunchError(
            f"{path!r} must be a directory of user {uid} with mode 0700. "
            f"Received: user {found.st_uid}, mode {mode:04o}. Remove it, or "
            "set XDG_RUNTIME_DIR to a directory of your own."
        )
    return path


def serve(
    path: str,
    secret: bytes,
    size: int,
    last_generation: int,
    config: Config | None = None,
) -> None:
    """Starts the server of the next generation; it ends when all ranks are in.

    If a generation fails, it stays to tell those who come later.

    Args:
        path: Where it is announced, or the address of a TCP port.
        secret: The secret of the job.
        size: Number of ranks in the job.
        last_generation: The last generation that this process was in.
        config: The settings, which a TCP port needs.

    Raises:
        LaunchError: Another live job uses the same name or port, or nothing
            can be announced at `path`.
    """
    global _running
    if _running is not None:
        if _running.goes_on(path, last_generation + 1):
            return
        last_generation = max(
            last_generation, _running.last_generation_of(path)
        )
    place: _Announced | _Port
    if addresses.is_tcp(path):
        place = _Port(path, config or Config(), size)
    else:
        place = _Announced(path, size)
    generations = FixedGenerations(size, last_generation)
    server = Server(place.socket, secret, generations, tls=place.tls)
    _running = _ServerThread(
        server, generations, place, path, last_generation + 1
    )
    _running.start()


class _Announced:
    """A Unix socket that is announced in a file."""

    tls = None

    def __init__(self, path: str, size: int) -> None:
        _refuse_second_server(path)
        self._path = path
        self._listener = Listener(backlog=size)
        self.socket = self._listener.socket
        try:
            announcement.forget_old(os.path.dirname(path))
            announcement.announce(path, self._listener.address)
        except OSError as error:
            self.socket.close()
            self.close()
            raise LaunchError(
                f"Rank 0 must be able to write {path!r}. Received: {error}. "
                "Free space there, or set XDG_RUNTIME_DIR to another directory."
            ) from error

    def tell(self, failure: tuple[str, str] | None) -> None:
        with contextlib.suppress(OSError):  # who comes late must wait then
            announcement.announce(self._path, self._listener.address, failure)

    def withdraw(self) -> None:
        announcement.withdraw(self._path, self._listener.address)

    def close(self) -> None:
        self._listener.close_address()


class _Port:
    """A TCP port that all ranks know."""

    def __init__(self, address: str, config: Config, size: int) -> None:
        host_port = addresses.host_and_port(address)
        assert host_port is not None
        host, port = host_port
        self.tls = tls.context(config, is_server=True)
        self.socket = listen_tcp(
            address_of_rank_0(host, config), port, size + _SPARE_BACKLOG
        )

    def tell(self, failure: tuple[str, str] | None) -> None:
        pass  # who comes late asks the server

    def withdraw(self) -> None:
        pass

    def close(self) -> None:
        pass


def address_of_rank_0(host: str, config: Config) -> str:
    """Returns the address of this host that `host` means, to listen there.

    Raises:
        LaunchError: `host` is another one.
    """
    if config.interface is not None:
        return interfaces.address_of(config.interface)
    found = interfaces.resolve(host)
    for address in found:
        if interfaces.is_local(address):
            return address
    raise LaunchError(
        "The first host must have the address where the others look for it. "
        f"Received: {host!r} ({', '.join(found)}), which this host "
        f"({interfaces.host_name()}) has not. Set HVD_INTERFACE here to the "
        "interface that they reach, or name another host."
    )


class _ServerThread(threading.Thread):
    """Runs the server until all ranks are in the last requested generation."""

    def __init__(
        self,
        server: Server,
        generations: FixedGenerations,
        place: _Announced | _Port,
        path: str,
        generation: int,
    ) -> None:
        super().__init__(name="hvd_keras rendezvous", daemon=True)
        self._server = server
        self._generations = generations
        self._place = place
        self._path = path
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._last_generation = generation
        self._has_ended = False
        self._announced: tuple[str, str] | None = None  # failure

    def goes_on(self, path: str, generation: int) -> bool:
        """Makes it serve `generation` too; returns False if it cannot."""
        if self._pid != os.getpid():
            return False
        with self._lock:
            self._last_generation = generation
            if self._path == path and not self._has_ended:
                return True
        self.finish()
        return False

    def last_generation_of(self, path: str) -> int:
        """Returns the last generation that it gave to a rank of that job."""
        is_of_this_job = self._pid == os.getpid() and self._path == path
        return self._generations.last() if is_of_this_job else 0

    def finish(self) -> None:
        """Lets it tell those who are connected how it went."""
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        while self.is_alive() and time.monotonic() < deadline:
            failed = self._announced and self._generations.failure()
            if failed and not self._server.has_connections():
                return
            self.join(0.005)

    def run(self) -> None:
        try:
            while not self._ends():
                self._server.step(None)
                if self._generations.failure() != self._announced:
                    self._announce(self._generations.failure())
            self._place.withdraw()
        except BaseException as error:
            what = f"{type(error).__name__}: {error}"
            text = f"The rendezvous server of rank 0 failed. {what}"
            self._announce(("InternalError", text))
            raise
        finally:
            with self._lock:
                self._has_ended = True
            self._server.close()
            self._place.close()

    def _ends(self) -> bool:
        with self._lock:
            are_over = self._generations.are_over(self._last_generation)
            self._has_ended = are_over and not self._server.has_connections()
            return self._has_ended

    def _announce(self, failure: tuple[str, str] | None) -> None:
        self._place.tell(failure)
        self._announced = failure


_running: _ServerThread | None = None


@atexit.register
def _finish_at_exit() -> None:
    if _running is not None and _running.is_alive():
        _running.finish()


def _refuse_second_server(path: str) -> None:
    found = announcement.read(path)
    if found is None or found.pid == os.getpid() or not found.is_alive():
        return
    try:
        addresses.connect(found.address, _PROBE_SECONDS).close()
    except OSError:
        return
    raise LaunchError(
        "The name of a job must be unique: rank 0 of another live job of this "
        f"user (pid {found.pid}) serves under the same name. Give this job "
        "another MASTER_PORT, or start it with hvdrun."
    )
