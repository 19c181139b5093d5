"""What the leader of a host holds while the job runs: its wire, its links."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from hvd_keras import _native
from hvd_keras._job.hosts import links, wire_process
from hvd_keras._job.hosts.layout import Layout, of_set
from hvd_keras._job.hosts.wire_process import WireProcess
from hvd_keras._rendezvous import addresses, interfaces
from hvd_keras._rendezvous.client import Rendezvous
from hvd_keras._rendezvous.listener import listen_tcp
from hvd_keras._rendezvous.protocol import Role, process_name
from hvd_keras.config import Config

Segment = tuple[int, int, bytes]  # see startup.py


@dataclasses.dataclass
class Started:
    """What the core of this rank needs."""

    segment: Segment
    pids: list[int]  # of the members of the region
    hosts: Any  # `_core.Hosts`


class Network:
    """The connections of this rank to other hosts. Not thread-safe.

    Attributes:
        layout: Where the ranks of the job are.
        version: What MPI says of itself, on leaders.
        host_names: The name of each host.
    """

    def __init__(
        self,
        layout: Layout,
        leaders: list[dict[str, Any]],
        rendezvous: Rendezvous,
        config: Config,
    ) -> None:
        """Takes down who is where; `start` connects.

        Args:
            layout: Where the ranks of the job are.
            leaders: What the leader of each host has said in the first
                exchange: its "hostname", "boot" and "address"; rank 0's
                "segment", which no other job has.
            rendezvous: The connection of this rank; used by `start` alone.
            config: The settings.
        """
        self.layout = layout
        self.version = "MPI"
        self._leaders = leaders
        self.host_names = [leader["hostname"] for leader in leaders]
        self._config = config
        self._secret = rendezvous.secret
        self._identity = rendezvous.identity
        self._generation = rendezvous.generation
        self._open_sets: set[int] = set()
        self._wire: WireProcess | None = None
        self._fd: int | None = None  # of the region of this host

    def start(self, rendezvous: Rendezvous) -> Started:
        """Connects the hosts; all ranks call it.

        Args:
            rendezvous: The connection of this rank.

        Raises:
            HvdError: A host could not be connected; all ranks raise.
        """
        layout, rank = self.layout, self._identity.rank
        is_leader = layout.local_ranks[0] == rank
        listener: socket.socket | None = None
        value: dict[str, Any] = {"pid": os.getpid()}
        try:
            if is_leader:
                self._fd, token = _native.core().create_segment(
                    len(layout.local_ranks), has_wire=True
                )
                self._wire = self._start_wire()
                value["segment"] = (os.getpid(), self._fd, token.hex())
                value["wire"] = self._wire.pid
            if rank == 0:
                listener, value["links"] = self.listen(layout.num_hosts)
            told = rendezvous.exchange(json.dumps(value).encode())
            peers = [json.loads(one) for one in told]
            wire_process.begin_all(
                rendezvous,
                self._wire,
                self.host_names[layout.host],
                self._config.start_timeout_seconds,
            )
            leader = peers[layout.local_ranks[0]]
            pid, fd, token = leader["segment"]
            segment = (pid, fd, bytes.fromhex(token))
            self.open_set(0, layout, segment)
            pids = [int(peers[one]["pid"]) for one in layout.leaders]
            hosts = self.connect(
                layout,
                layout.leaders,
                pids,
                listener,
                peers[0]["links"],
                check=rendezvous.check,
            )
            hosts.job_ranks = layout.ranks
        finally:
            if listener is not None:
                listener.close()
        if self._wire is not None:
            self.version = self._wire.version
        pids = [int(peers[one]["pid"]) for one in layout.local_ranks]
        return Started(segment, [*pids, int(leader["wire"])], hosts)

    def has_attached(self) -> None:
        """Frees what the ranks of this host needed to attach."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def stop(self, *, goes_on: bool) -> None:
        """Ends the wire, once the core has stopped.

        Args:
            goes_on: Whether this process joins the job again at once.
        """
        self.has_attached()
        if self._wire is not None:
            self._wire.end(in_background=goes_on)
            self._wire = None

    def _address_to_listen_at(self) -> str:
        """Returns the address of this host that leads to the others."""
        if self._config.interface is not None:
            return interfaces.address_of(self._config.interface)
        own = str(self._leaders[self.layout.host]["address"])
        if not interfaces.is_loopback(own):
            return own  # it has reached the rendezvous on another host
        for leader in self._leaders:
            address = str(leader["address"])
            if not interfaces.is_local(address):
                return interfaces.address_towards(address)
        return "127.0.0.1"  # the others are containers of this machine

    def _start_wire(self) -> WireProcess:
        boots = {leader["boot"] for leader in self._leaders}
        shares_kernel = len(boots) < len(self._leaders)
        # Jobs may have one secret, and processes may start several jobs.
        token = str(self._leaders[0]["segment"]).encode()
        generation = self._generation.to_bytes(8, "big")
        digest = hashlib.sha256(self._secret + generation + token)
        library = self._config.mpi_library or wire_process.default_library()
        device = wire_process.device_to_use(
            self._address_to_listen_at(), self._config.interface is not None
        )
        return WireProcess(
            _native.core_library(),
            library,
            name=f"hvd_{digest.hexdigest()[:16]}",
            host=self.layout.host,
            host_name=self.host_names[self.layout.host],
            num_hosts=self.layout.num_hosts,
            environ=wire_process.environment(os.environ, shares_kernel, device),
        )

    # ---- Process sets ----

    def layout_of(self, ranks: Sequence[int]) -> Layout | None:
        """Returns the layout of a process set; None if it is on one host."""
        layout = of_set(self.layout, ranks)
        return layout if layout.num_hosts > 1 else None

    def listen(self, num_hosts: int) -> tuple[socket.socket, str]:
        """Returns a socket for the leaders of other hosts, and its address."""
        listener = listen_tcp(self._address_to_listen_at(), 0, num_hosts + 64)
        host, port = listener.getsockname()[:2]
        return listener, addresses.of_tcp(host, port)

    def connect(
        self,
        layout: Layout,
        leaders: Sequence[int],
        pids: Sequence[int],
        listener: socket.socket | None,
        address: str,
        *,
        check: Callable[[], None],
    ) -> Any:
        """Connects the leaders of a process set, or of the job.

        Args:
            layout: Where the ranks of the set are.
            leaders: The ranks of its leaders in the job, by host.
            pids: Those of the leaders.
            listener: That of `listen`, on rank 0 of the set.
            address: Its address, on all ranks.
            check: Raises if a rank of the job is lost.

        Returns:
            `_core.Hosts` for this rank.
        """
        sockets = [-1] * layout.num_hosts
        seconds = self._config.start_timeout_seconds
        identity = dataclasses.replace(
            self._identity,
            role=Role.LEADER,
            rank=layout.rank,
            generation=self._generation,
            pid=os.getpid(),
        )
        if layout.rank == 0 and listener is not None:
            expected = {
                leader: host
                for host, leader in enumerate(layout.leaders)
                if host
            }
            found = links.accept_all(
                listener,
                self._secret,
                expected,
                self._generation,
                seconds,
                check,
            )
            for host, sock in found.items():
                sockets[host] = sock.detach()
        elif layout.rank in layout.leaders:
            sock = links.connect(address, self._secret, identity, seconds)
            sockets[0] = sock.detach()
        hosts = _native.core().Hosts()
        hosts.ranks = layout.ranks
        hosts.sockets = sockets
        names = [self.host_names[host] for host in layout.job_hosts]
        hosts.own_host = self.host_names[self.layout.host]
        hosts.leader_names = [
            f"rank {rank} ({process_name(name, pid)})"
            for rank, name, pid in zip(leaders, names, pids, strict=True)
        ]
        hosts.host_names = [
            f"host {name} ({_list_ranks(self.layout.ranks[host])})"
            for host, name in zip(layout.job_hosts, names, strict=True)
        ]
        hosts.heartbeat_seconds = self._config.heartbeat_seconds
        hosts.timeout_seconds = self._config.heartbeat_timeout_seconds
        return hosts

    def open_set(self, number: int, layout: Layout, segment: Segment) -> None:
        """Has the wire of this host serve a process set.

        Args:
            number: The id of the set.
            layout: Where its ranks are, as seen from a rank of this host.
            segment: The region that the ranks of this host share.
        """
        if self._wire is None:
            return  # the leader of this host does it
        pid, fd, token = segment
        ranks = ",".join(str(host) for host in layout.job_hosts)
        self._wire.ask(
            f"open {number} {pid} {fd} {token.hex().upper()} "
            f"{len(layout.local_ranks)} {self._generation} {ranks}"
        )
        self._open_sets.add(number)

    def close_set(self, number: int) -> None:
        """Ends what `open_set` began, once the set's engines have ended."""
        if self._wire is not None and number in self._open_sets:
            self._open_sets.discard(number)
            self._wire.ask(f"close {number}")


def _list_ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
