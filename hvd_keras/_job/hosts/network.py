"""What the leader of a host holds while the job runs: its wire, its links."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
from typing import Any

from hvd_keras import _native
from hvd_keras._job.bootstrap import addresses
from hvd_keras._job.bootstrap.client import Rendezvous
from hvd_keras._job.bootstrap.listener import listen_tcp
from hvd_keras._job.bootstrap.wire import Identity, Role
from hvd_keras._job.hosts import links, wire_process
from hvd_keras._job.hosts.plan import Plan
from hvd_keras._job.hosts.wire_process import WireProcess
from hvd_keras.config import Config

Segment = tuple[int, int, bytes]  # see startup.py


@dataclasses.dataclass
class Started:
    """What the core of this rank needs."""

    segment: Segment
    pids: list[int]  # of the members of the region
    hosts: Any  # `_core.Hosts`
    version: str  # of MPI, on leaders


class Network:
    """The connections of this rank to other hosts. Not thread-safe.

    Attributes:
        plan: Where the ranks of the job are.
    """

    def __init__(
        self, plan: Plan, names: list[str], rendezvous: Rendezvous,
        config: Config,
    ) -> None:
        """Takes down who is where; `start` connects.

        Args:
            plan: Where the ranks of the job are.
            names: The name of each host.
            rendezvous: The connection of this rank; used by `start` alone.
            config: The settings.
        """
        self.plan = plan
        self._names = names
        self._config = config
        self._secret = rendezvous.secret
        self._identity = rendezvous.identity
        self._address = rendezvous.own_address
        self._wire: WireProcess | None = None

    def start(self, rendezvous: Rendezvous, shares_kernel: bool) -> Started:
        """Connects the hosts; all ranks call it.

        Args:
            rendezvous: The connection of this rank.
            shares_kernel: Whether two "hosts" are one machine.

        Raises:
            HvdError: A host could not be connected; all ranks raise.
        """
        plan, rank = self.plan, self._identity.rank
        is_leader = plan.local_ranks[0] == rank
        listener: socket.socket | None = None
        value: dict[str, Any] = {"pid": os.getpid()}
        own_fd: int | None = None
        try:
            if is_leader:
                own_fd, token = _native.core().create_segment(
                    len(plan.local_ranks), has_wire=True
                )
                self._wire = self._start_wire(shares_kernel)
                value["segment"] = (os.getpid(), own_fd, token.hex())
                value["wire"] = self._wire.pid
            if rank == 0:
                listener = listen_tcp(self._address, 0, plan.num_hosts + 64)
                value["links"] = _address_of(listener)
            told = rendezvous.exchange(json.dumps(value).encode())
            peers = [json.loads(one) for one in told]
            wire_process.begin_all(
                rendezvous,
                self._wire,
                self._names[plan.host],
                self._config.start_timeout_seconds,
            )
            leader = peers[plan.local_ranks[0]]
            pid, fd, token = leader["segment"]
            segment = (pid, fd, bytes.fromhex(token))
            sockets = [-1] * plan.num_hosts
            if is_leader:
                self._open(0, segment, rendezvous.epoch, plan)
                sockets = self._connect(
                    plan, listener, peers[0]["links"], rank
                )
            own_fd = None  # the caller closes it when all have attached
        finally:
            if listener is not None:
                listener.close()
            if own_fd is not None:
                os.close(own_fd)
        pids = [int(peers[one]["pid"]) for one in plan.local_ranks]
        return Started(
            segment,
            [*pids, int(leader["wire"])],
            self._hosts(plan, sockets, peers),
            self._wire.version if self._wire else "",
        )

    def stop(self) -> None:
        """Ends the wire, once the core has stopped."""
        if self._wire is not None:
            self._wire.end()
            self._wire = None

    def _start_wire(self, shares_kernel: bool) -> WireProcess:
        epoch = self._identity.epoch
        digest = hashlib.sha256(self._secret + epoch.to_bytes(8, "big"))
        library = self._config.mpi_library or wire_process.default_library()
        return WireProcess(
            _native.core_library(),
            library,
            name=f"hvd_{digest.hexdigest()[:16]}",
            host=self.plan.host,
            num_hosts=self.plan.num_hosts,
            environ=wire_process.environment(os.environ, shares_kernel),
        )

    def _open(
        self, number: int, segment: Segment, epoch: int, plan: Plan
    ) -> None:
        """Has the wire serve the region of a process set."""
        assert self._wire is not None
        pid, fd, token = segment
        ranks = ",".join(str(host) for host in range(plan.num_hosts))
        self._wire.ask(
            f"open {number} {pid} {fd} {token.hex().upper()} "
            f"{len(plan.local_ranks)} {epoch} {ranks}"
        )

    def _connect(
        self,
        plan: Plan,
        listener: socket.socket | None,
        address: str,
        rank: int,
    ) -> list[int]:
        """Connects the leaders; returns a socket for each host, or -1."""
        sockets = [-1] * plan.num_hosts
        seconds = self._config.start_timeout_seconds
        identity = Identity(
            Role.LEADER,
            rank,
            self._identity.size,
            self._identity.epoch,
            os.getpid(),
        )
        if listener is None:
            sock = links.connect(address, self._secret, identity, seconds)
            sockets[0] = sock.detach()
            return sockets
        expected = {
            leader: host for host, leader in enumerate(plan.leaders) if host
        }
        found = links.accept_all(
            listener, self._secret, expected, identity.epoch, seconds
        )
        for host, sock in found.items():
            sockets[host] = sock.detach()
        return sockets

    def _hosts(
        self, plan: Plan, sockets: list[int], peers: list[dict[str, Any]]
    ) -> Any:
        hosts = _native.core().Hosts()
        hosts.ranks = plan.ranks
        hosts.sockets = sockets
        hosts.labels = [
            f"host {name} (rank {leader}, pid {peers[leader]['pid']})"
            for name, leader in zip(self._names, plan.leaders, strict=True)
        ]
        hosts.heartbeat_seconds = self._config.heartbeat_seconds
        hosts.timeout_seconds = self._config.heartbeat_timeout_seconds
        return hosts


def _address_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return addresses.of_tcp(host, port)
