"""The process that carries data between this host and the others, by MPI."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from hvd_keras._job.hosts.pmi import Pmi
from hvd_keras._records.blame import End, Evidence, blame
from hvd_keras._rendezvous import interfaces
from hvd_keras._rendezvous.client import Rendezvous
from hvd_keras.exceptions import (
    HvdError,
    InternalError,
    LaunchError,
    PeerLostError,
)

_START = (
    "import ctypes, sys; "
    "ctypes.CDLL(sys.argv[1]).hvd_run_wire_process("
    "int(sys.argv[2]), sys.argv[3].encode())"
)
_INFINIBAND = "/sys/class/infiniband"
_INFINIBAND_OF = "/sys/class/net/{}/device/infiniband"
_ANSWER_SECONDS = 10.0
_END_SECONDS = 3.0
_STATUS_SECONDS = 0.3  # from the end of its connections to its own
_MAX_ANSWER_BYTES = 16 << 10


class WireProcess:
    """The wire of this host. Not thread-safe.

    It ends when this process does, however that ends.

    Attributes:
        pid: The process.
        version: What MPI says of itself; empty until `begin_all`.
    """

    def __init__(
        self,
        core_library: str,
        mpi_library: str,
        *,
        name: str,
        host: int,
        host_name: str,
        num_hosts: int,
        environ: Mapping[str, str],
    ) -> None:
        """Starts the process; MPI begins with `begin_all`.

        Args:
            core_library: The path of libhvd_core.so.
            mpi_library: The path of an MPI library of the standard ABI.
            name: A name for this membership of the job, in MPI's files.
            host: The index of this host.
            host_name: Its name.
            num_hosts: The number of hosts.
            environ: The variables for MPI, beside those that tell it its place.
        """
        self._control, control = socket.socketpair()
        pmi_end, pmi = socket.socketpair()
        with control, pmi:
            for sock in (control, pmi):
                sock.set_inheritable(True)
            environ = {
                **environ,
                "PMI_FD": str(pmi.fileno()),
                "PMI_RANK": str(host),
                "PMI_SIZE": str(num_hosts),
            }
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-c", _START),
                    *(core_library, str(control.fileno()), mpi_library),
                ],
                env=environ,
                stdin=subprocess.DEVNULL,
                pass_fds=(control.fileno(), pmi.fileno()),
                # Ctrl-C is for the ranks, which end it.
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._who = f"The wire of host {host_name} (pid {self.pid})"
        self.version = ""
        self._pmi_socket = pmi_end
        self.pmi = Pmi(pmi_end, name, num_hosts)
        self._received = b""

    def step(self, seconds: float, other: int) -> str:
        """Serves MPI's start until it has something to say to the others.

        Args:
            seconds: How long to wait.
            other: A descriptor to wait for as well.

        Returns:
            "barrier", "ready", or "other" if that is readable; "" if none came
            in time.

        Raises:
            InternalError: MPI could not begin.
            PeerLostError: The process has ended.
        """
        deadline = time.monotonic() + seconds
        while not self.pmi.is_at_barrier:
            left = deadline - time.monotonic()
            if left <= 0:
                return ""
            waited = [self._control.fileno(), self.pmi.fileno(), other]
            ready, _, _ = select.select(waited, [], [], left)
            if self.pmi.fileno() in ready and not self.pmi.serve():
                raise self.lost()
            if self._control.fileno() in ready:
                word, _, rest = self._read_answer().partition(" ")
                if word != "ready":
                    raise InternalError(f"MPI did not begin: {rest}")
                self.version = rest.split(" ", 2)[2].replace(" Version:", "")
                return "ready"
            if other in ready:
                return "other"
        return "barrier"

    def ask(self, command: str) -> None:
        """Gives the process a command and waits for its answer.

        Raises:
            InternalError: It refuses.
            PeerLostError: It has ended.
        """
        try:
            self._control.sendall(f"{command}\n".encode())
        except OSError:
            raise self.lost() from None
        answer = self._read_answer()
        if answer != "ok":
            raise InternalError(
                f"{self._who} refused: {answer.partition(' ')[2]}"
            )

    def end(self, *, in_background: bool = False) -> None:
        """Ends the process; kills it if it is slow, or if MPI has not begun.

        Args:
            in_background: Whether to return before that. It takes a fifth of a
                second, in which the network may still send.
        """
        if not self.version:  # it does not listen
            self.kill()
            return
        with contextlib.suppress(OSError):
            self._control.sendall(b"end\n")
        if in_background:
            threading.Thread(target=self._await_end).start()
        else:
            self._await_end()

    def _await_end(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        self.kill()

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()
        self._process.wait()
        self._control.close()
        self._pmi_socket.close()

    def _read_answer(self) -> str:
        self._control.settimeout(_ANSWER_SECONDS)
        while b"\n" not in self._received:
            try:
                data = self._control.recv(4096)
            except TimeoutError:
                raise InternalError(
                    f"{self._who} did not answer within {_ANSWER_SECONDS:g} s."
                ) from None
            except OSError:
                data = b""
            if not data or len(self._received) > _MAX_ANSWER_BYTES:
                raise self.lost()
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line.decode("utf-8", "replace")

    def has_ended(self) -> bool:
        """Whether the process runs no more."""
        return self._process.poll() is not None

    def was_killed(self) -> bool:
        """Whether SIGKILL ended it, which MPI never sends."""
        return self._process.poll() == -signal.SIGKILL

    def lost(self) -> PeerLostError:
        """Returns the error that tells how the process has ended."""
        try:
            status = self._process.wait(_STATUS_SECONDS)
        except subprocess.TimeoutExpired:
            return PeerLostError(f"{self._who} has hung up.")
        how = f"ended with status {status}"
        if status < 0:
            how = f"was killed by {signal.Signals(-status).name}"
        return PeerLostError(f"{self._who} {how}.")


def begin_all(
    rendezvous: Rendezvous, wire: WireProcess | None, host: str, seconds: float
) -> None:
    """Begins MPI on all hosts; all ranks call it.

    Args:
        rendezvous: The connection of this rank.
        wire: That of this host, on its leader; None on the other ranks.
        host: The name of this host.
        seconds: How long MPI may take to begin.

    Raises:
        LaunchError: MPI did not begin on some host, which the error names.
        PeerLostError: A wire has ended.
    """
    deadline = time.monotonic() + seconds
    state = "waits"
    while True:
        value: dict[str, object] = {}
        if wire is not None:
            value = {"host": host}
            if state != "ready":
                state, value["error"] = _wait_for(wire, rendezvous, deadline)
            value["state"] = state
            value["puts"] = wire.pmi.puts
        leaders = _exchange(rendezvous, value)
        if any(leader.get("error") for leader in leaders):
            _raise_cause(rendezvous, wire, value)
        if all(leader["state"] == "ready" for leader in leaders):
            return
        if wire is not None and state == "barrier":
            puts: dict[str, str] = {}
            for leader in leaders:
                puts.update(leader["puts"])
            wire.pmi.leave_barrier(puts)


def _wait_for(
    wire: WireProcess, rendezvous: Rendezvous, deadline: float
) -> tuple[str, str]:
    """Returns what the wire says to the others, and an error.

    Raises:
        HvdError: A rank died or gave up.
    """
    state = "other"
    while state == "other":
        rendezvous.check()
        try:
            left = deadline - time.monotonic()
            state = wire.step(left, rendezvous.fileno())
        except (HvdError, OSError) as error:
            return "", str(error)
    return state, "" if state else "MPI did not begin within HVD_START_TIMEOUT."


def _exchange(
    rendezvous: Rendezvous, value: Mapping[str, object]
) -> list[dict[str, Any]]:
    """Returns what the leaders say; other ranks say nothing."""
    told = rendezvous.exchange(json.dumps(value).encode())
    return [found for found in map(json.loads, told) if found]


def _raise_cause(
    rendezvous: Rendezvous, wire: WireProcess | None, value: dict[str, object]
) -> NoReturn:
    """Raises the first cause, after MPI has failed somewhere.

    When a wire ends, MPI ends those of other hosts, too.
    """
    if wire is not None:
        value["is_lost"] = wire.has_ended()
        if wire.has_ended():
            value["error"] = str(wire.lost())
        value["was_killed"] = wire.was_killed()
    leaders = _exchange(rendezvous, value)
    ends = [
        # What MPI says may be an effect of the end of another wire.
        End(host, exit_status=1, signal="SIGKILL")
        if leader["was_killed"]
        else End(host, "PeerLostError", exit_status=1)
        for host, leader in enumerate(leaders)
        if leader.get("error")
    ]
    first = leaders[blame(Evidence(ends)).rank or 0]
    if first["is_lost"]:
        raise PeerLostError(first["error"])
    raise LaunchError(f"On host {first['host']}: {first['error']}")


def environment(
    environ: Mapping[str, str], shares_kernel: bool, device: str | None
) -> dict[str, str]:
    """Returns the variables for the wire's process.

    Args:
        environ: Those of the rank.
        shares_kernel: Whether another "host" of the job runs on this machine:
            the network library would take its memory for shared.
        device: The interface where MPI must listen; None: where it will.
    """
    # What other launchers have set would confuse MPI.
    names = ("PMI", "PMIX", "OMPI", "HYDRA", "MPICH_INTERFACE", "HVD_SECRET")
    kept = {
        name: value
        for name, value in environ.items()
        if not name.startswith(names)
    }
    if shares_kernel:
        kept.setdefault("UCX_TLS", "tcp,self")
    if device is not None:
        kept.setdefault("UCX_NET_DEVICES", device)
        kept.setdefault("FI_TCP_IFACE", device)  # of libfabric
    return kept


def device_to_use(address: str, is_chosen: bool) -> str | None:
    """Returns the interface where MPI must listen; None: where it will.

    By itself MPI listens at every interface that is up, and may take one that
    leads nowhere. Faster networks than plain ones are its own business. UCX
    does not connect containers over the loopback interface.

    Args:
        address: Where this host listens.
        is_chosen: Whether the user has chosen that.
    """
    if interfaces.is_loopback(address):
        return None
    device = interfaces.device_of(address)
    if device is None or os.path.exists(_INFINIBAND_OF.format(device)):
        return None
    if not is_chosen and os.path.isdir(_INFINIBAND):
        return None
    return device


def default_library() -> str:
    """Returns the path of the MPI in the Python package `mpich`.

    Raises:
        LaunchError: It is not installed.
    """
    try:
        files = importlib.metadata.files("mpich") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "libmpi_abi.so.1":
            return os.path.realpath(str(file.locate()))
    raise LaunchError(
        "A job over several hosts needs MPI: `pip install '.[hosts]'` in a "
        "clone of hvd_keras, or name a library of the standard ABI in "
        "HVD_MPI_LIBRARY."
    )
