"""The rendezvous server: gives every rank the values of all ranks.

It runs in hvdrun, or in rank 0 if another launcher started the ranks. It
numbers the memberships of the job; the number is the epoch. Ranks ask to join
and are told the epoch that they have joined. Survivors and newcomers join the
same one.

It listens at a Unix socket, and at TCP ports if the job has several hosts.
There agents connect too, which start the ranks of their hosts; what they say
after their proof is the launcher's business.

The server is one state machine over non-blocking sockets, without threads. Its
owner calls `step()` when `fileno()` is readable or `next_deadline()` has come.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from hvd_keras._job.bootstrap import wire
from hvd_keras._job.bootstrap.connection import Connection
from hvd_keras._job.bootstrap.membership import Membership
from hvd_keras._job.bootstrap.place import Place
from hvd_keras._job.bootstrap.stream import Stream
from hvd_keras._job.bootstrap.wire import FrameType, Report, ReportKind, Role

if TYPE_CHECKING:
    import ssl

# Connections in the handshake that are allowed beside one for each rank.
_SPARE_CONNECTIONS = 64


class ExchangeServer:
    """Serves the exchanges of one job. Not thread-safe."""

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        size: int,
        on_report: Callable[[Report], None] | None = None,
        *,
        last_epoch: int = 0,
        tls: ssl.SSLContext | None = None,
        on_agent: Callable[[wire.Identity, Stream, bytes], None] | None = None,
    ) -> None:
        """Serves on `listener`, which it owns from now on.

        Args:
            listener: A socket that listens.
            secret: The secret that a rank of the job must know.
            size: Number of ranks in the job.
            on_report: Called with what a rank tells of itself.
            last_epoch: The first membership here gets the next epoch.
            tls: What TCP connections use; None: no TLS.
            on_agent: Gets the connection of an agent or a leader that has
                proved itself, or of a rank with a result, and the bytes that
                must be sent to it first.
        """
        self._listeners: list[socket.socket] = []
        self._secret = secret
        self._size = size
        self._on_report = on_report
        self._on_agent = on_agent
        self._tls = tls
        self._connections: set[Connection] = set()
        self._memberships: dict[int, Membership] = {}  # by epoch
        self._places = [Place(last_epoch) for _ in range(size)]  # by rank
        self._exited: dict[int, str] = {}  # rank -> what became of it
        self._selector = selectors.DefaultSelector()
        self.add_listener(listener)

    def add_listener(self, listener: socket.socket) -> None:
        """Serves on `listener` too, which it owns from now on."""
        listener.setblocking(False)
        self._listeners.append(listener)
        self._selector.register(listener, selectors.EVENT_READ, listener)

    def set_size(self, size: int) -> None:
        """Sets the number of ranks, before any of them is started."""
        self._size = size
        self._places = [Place(0) for _ in range(size)]

    def fileno(self) -> int:
        """Returns a descriptor that is readable when `step()` has work."""
        # An epoll descriptor: it can be watched by another epoll.
        return self._selector.fileno()

    def next_deadline(self) -> float | None:
        """Returns the monotonic time by which `step()` must be called."""
        deadlines = [c.deadline for c in self._connections if c.deadline]
        for membership in self._memberships.values():
            deadlines += membership.deadlines()
        return min(deadlines, default=None)

    def step(self, timeout_seconds: float | None = 0.0) -> None:
        """Waits for work up to the timeout, then does it."""
        deadline = self.next_deadline()
        if deadline is not None:
            left = max(0.0, deadline - time.monotonic())
            if timeout_seconds is None or left < timeout_seconds:
                timeout_seconds = left
        for key, _ in self._selector.select(timeout_seconds):
            if isinstance(key.data, socket.socket):
                self._accept(key.data)
            elif key.data in self._connections:
                self._serve(key.data)
        self._check_deadlines()

    def rank_started(self, rank: int) -> None:
        """Notes that a process was started for `rank`.

        If there was one before, the new one may take its place, and the old one
        is refused from now on. Earlier failures do not concern the new one.
        """
        place = self._places[rank]
        failed = (m.epoch for m in self._memberships.values() if m.failure)
        place.epoch = max(place.epoch, *failed, 0)
        # A newcomer that ended before it came still bars its predecessor.
        place.is_for_newcomer |= place.holder is not None
        place.holder = None
        self._exited.pop(rank, None)

    def rank_exited(self, rank: int, what: str) -> None:
        """Notes that the process of `rank` has ended, and how."""
        self._exited[rank] = what
        for membership in self._memberships.values():
            if membership.needs(rank):
                self._fail(membership, "PeerLostError", self._lost(rank, what))

    def is_done(self, epoch: int) -> bool:
        """Whether all epochs up to `epoch` are over and nobody is connected."""
        return (
            epoch in self._memberships
            and all(m.is_over for m in self._memberships.values())
            and not self._connections
        )

    def has_connections(self) -> bool:
        """Whether anybody is connected; any thread may ask."""
        return bool(self._connections)

    def last_epoch(self) -> int:
        """Returns the last epoch that a rank was told here; 0: none."""
        return max(self._memberships, default=0)

    def failure(self) -> tuple[str, str] | None:
        """Returns class and text of the error of the last epoch, if it failed.

        None: there was none yet, or it goes on, or all went well.
        """
        if not self._memberships:
            return None
        return self._memberships[max(self._memberships)].failure

    def close(self) -> None:
        """Closes the listeners and all connections."""
        for connection in list(self._connections):
            self._drop(connection)
        for listener in self._listeners:
            listener.close()
        self._selector.close()

    # ---- Connections ----

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        try:
            stream = Stream(sock, self._tls)
        except OSError:  # the other side has hung up
            sock.close()
            return
        if not stream.is_of_this_user():
            stream.close()
            return
        self._make_room()
        deadline = time.monotonic() + wire.HANDSHAKE_SECONDS
        connection = Connection(stream, deadline)
        self._connections.add(connection)
        self._selector.register(stream, selectors.EVENT_READ, connection)
        self._flush(connection)

    def _make_room(self) -> None:
        # Ranks prove themselves at once. So the oldest unproved connection is
        # the least likely to come from a rank, if it comes from a host that
        # has most of them.
        unproved = [c for c in self._connections if c.identity is None]
        if len(unproved) >= self._size + _SPARE_CONNECTIONS:
            counts = Counter(c.stream.origin for c in unproved)
            ((worst, _),) = counts.most_common(1)
            crowd = [c for c in unproved if c.stream.origin == worst]
            self._drop(min(crowd, key=lambda c: c.deadline or 0.0))

    def _serve(self, connection: Connection) -> None:
        self._receive(connection)
        while connection in self._connections and connection.stream.has_more():
            self._receive(connection)

    def _receive(self, connection: Connection) -> None:
        self._flush(connection)
        if connection not in self._connections or connection.close_when_sent:
            return
        # Read no more than the next message, so that nothing piles up.
        wanted = connection.needed_bytes() - len(connection.received)
        data = connection.stream.receive(wanted)
        if data is None:
            # A TLS handshake may just have ended, for which the unsent waits.
            if connection.unsent:
                self._flush(connection)
            return
        if not data:
            self._lose(connection)
            return
        connection.received += data
        if len(connection.received) < connection.needed_bytes():
            self._check_cap(connection)
            return
        message = bytes(connection.received)
        connection.received.clear()
        if connection.identity is None:
            self._authenticate(connection, message)
        else:
            self._handle_frame(connection, message)

    def _send(self, connection: Connection, data: bytes) -> None:
        connection.unsent += data
        self._flush(connection)

    def _flush(self, connection: Connection) -> None:
        if not connection.stream.send(connection.unsent):
            self._lose(connection)
            return
        if connection.close_when_sent and not connection.unsent:
            self._drop(connection)
            return
        events = selectors.EVENT_READ | connection.stream.send_event
        if connection.close_when_sent:  # whatever it says is ignored
            events = connection.stream.send_event
        self._selector.modify(connection.stream, events, connection)

    @staticmethod
    def _close_after_sending(connection: Connection) -> None:
        connection.close_when_sent = True
        connection.deadline = time.monotonic() + wire.HANDSHAKE_SECONDS

    def _drop(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection.stream)
        connection.stream.close()

    def _lose(self, connection: Connection) -> None:
        # The other side hung up.
        if connection not in self._connections:
            return
        self._drop(connection)
        identity, membership = connection.identity, connection.membership
        if identity is None or membership is None:
            return
        if membership.members.get(identity.rank) is connection:
            gone = f"went away during `init()` ({identity.process})"
            what = self._exited.get(identity.rank, gone)
            lost = self._lost(identity.rank, what)
            self._fail(membership, "PeerLostError", lost)

    def _check_cap(self, connection: Connection) -> None:
        if connection.identity is None:
            return
        cap = wire.MAX_VALUE_BYTES + wire.EXCHANGE_HEADER.size
        if connection.needed_bytes() - wire.FRAME_HEADER_BYTES > cap:
            self._lose(connection)

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections):
            if connection.deadline and connection.deadline <= now:
                self._drop(connection)
        for membership in self._memberships.values():
            if membership.is_overdue(now):
                self._give_up(membership)
                continue
            for member, notice in membership.due_notices(now):
                self._send(member, wire.frame(FrameType.NOTICE, notice))

    def _give_up(self, membership: Membership) -> None:
        """Ends a membership of which some ranks do not come."""
        self._fail(membership, "StalledError", membership.overdue())

    # ---- Messages of proved peers ----

    def _authenticate(self, connection: Connection, message: bytes) -> None:
        identity = wire.check_proof(self._secret, connection.nonce, message)
        if identity is None:
            self._drop(connection)
            return
        connection.identity = identity
        connection.deadline = None
        mac = wire.server_mac(self._secret, connection.nonce, message)
        # Not yet sent: if it has hung up since, those who need it must know.
        connection.unsent += mac
        if identity.role in (Role.AGENT, Role.GIVER, Role.LEADER):
            self._hand_over(connection, identity)
            return
        refusal = self._refusal(identity)
        if refusal is not None:
            self._refuse(connection, *refusal)
        elif identity.role == Role.MEMBER:
            self._admit(connection, identity)
        else:
            self._flush(connection)

    def _hand_over(
        self, connection: Connection, identity: wire.Identity
    ) -> None:
        if self._on_agent is None:
            self._drop(connection)
            return
        self._connections.discard(connection)
        self._selector.unregister(connection.stream)
        unsent = bytes(connection.unsent)
        self._on_agent(identity, connection.stream, unsent)

    def _refusal(self, identity: wire.Identity) -> tuple[str, str] | None:
        """Returns class and text of the error for a rank that must not join."""
        rank = identity.rank
        if identity.size != self._size or rank >= self._size:
            return "MismatchError", (
                f"The job has {self._size} ranks. Received: rank={rank} "
                f"size={identity.size} ({identity.process})."
            )
        reason = self._places[rank].refusal(identity)
        return None if reason is None else ("LaunchError", reason)

    def _admit(self, connection: Connection, identity: wire.Identity) -> None:
        rank = identity.rank
        place = self._places[rank]
        # The next one, also if that has failed: then this rank must know. All
        # ranks are in every membership, so none is left out.
        place.epoch += 1
        place.holder = identity.process
        membership = self._memberships.setdefault(
            place.epoch, Membership(place.epoch, self._size)
        )
        connection.membership = membership
        failure = membership.failure
        membership.admit(rank, connection)
        joined = wire.pack_epoch(membership.epoch)
        self._send(connection, wire.frame(FrameType.JOINED, joined))
        if connection not in self._connections:
            return  # the other side hung up
        if failure is not None:
            self._refuse(connection, *failure)
        elif self._exited:
            first = min(self._exited)
            lost = self._lost(first, self._exited[first])
            self._fail(membership, "PeerLostError", lost)

    @staticmethod
    def _lost(rank: int, what: str) -> str:
        return f"Rank {rank} {what} before the job was up."

    def _handle_frame(self, connection: Connection, message: bytes) -> None:
        identity, membership = connection.identity, connection.membership
        assert identity is not None
        kind, _ = wire.frame_header(message[: wire.FRAME_HEADER_BYTES])
        body = message[wire.FRAME_HEADER_BYTES :]
        if membership is None:
            self._take_report(connection, identity, kind, body)
        elif membership.failure is not None:
            pass  # the rank will find the error when it reads
        elif membership.members.get(identity.rank) is not connection:
            self._refuse(
                connection,
                "LaunchError",
                f"Rank {identity.rank} has left epoch {membership.epoch}. "
                "Received: a message for that epoch, which comes too late "
                f"({identity.process}).",
            )
        elif kind == FrameType.GOODBYE:
            membership.leave(identity.rank)
        elif kind == FrameType.ABORT:
            membership.leave(identity.rank)
            self._fail(
                membership,
                "PeerLostError",
                f"Rank {identity.rank} ({identity.process}) gave up in "
                f"`init()`: {wire.read_text(body)}",
            )
        elif kind == FrameType.EXCHANGE and membership.bring(
            identity.rank, body, time.monotonic()
        ):
            if membership.is_round_complete():
                result = wire.frame(FrameType.RESULT, membership.next_round())
                for member in list(membership.members.values()):
                    self._send(member, result)
        else:
            self._lose(connection)

    def _take_report(
        self,
        connection: Connection,
        identity: wire.Identity,
        kind: int,
        body: bytes,
    ) -> None:
        told = wire.unpack_report(body) if kind == FrameType.REPORT else None
        if told is None:
            self._drop(connection)
            return
        if told.kind != ReportKind.STRAGGLER:  # of the one that has proved
            told = told._replace(rank=identity.rank)
        if self._on_report is not None:
            self._on_report(told)
        if told.kind == ReportKind.STATUS:
            return  # more will come
        self._close_after_sending(connection)
        self._send(connection, wire.frame(FrameType.ACCEPTED))

    def _refuse(self, connection: Connection, error: str, message: str) -> None:
        self._close_after_sending(connection)
        body = wire.text(f"{error}\n{message}")
        self._send(connection, wire.frame(FrameType.ERROR, body))

    def _fail(self, membership: Membership, error: str, message: str) -> None:
        members = membership.fail(error, message)
        for member in members:
            if member in self._connections:
                self._refuse(member, error, message)
