"""The rendezvous server: the connections of those who start a job.

It runs in hvdrun, or in rank 0 if another launcher started the ranks. It knows
bytes, proofs and frames. What ranks say, and who is in, is up to
`Generations`; what a rank tells of itself, and agents, which start the ranks of
their hosts, are the launcher's business.

It listens at a Unix socket, and at TCP ports if the job has several hosts.

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

from hvd_keras._rendezvous import protocol
from hvd_keras._rendezvous.generation import Peer
from hvd_keras._rendezvous.generations import Generations
from hvd_keras._rendezvous.protocol import FrameType, Report, ReportKind, Role
from hvd_keras._rendezvous.stream import Stream

if TYPE_CHECKING:
    import ssl

# Connections in the handshake that are allowed beside one for each rank.
_SPARE_CONNECTIONS = 64
_MAX_MESSAGE_BYTES = (
    protocol.FRAME_HEADER_BYTES
    + protocol.EXCHANGE_HEADER.size
    + protocol.MAX_VALUE_BYTES
)


class _Connection:
    """One connection; `peer` is None until the other side proves itself."""

    def __init__(self, stream: Stream, deadline: float) -> None:
        self.stream = stream
        self.nonce = protocol.new_nonce()
        self.peer: Peer | None = None
        self.deadline: float | None = deadline  # then it is dropped
        self.received = bytearray()
        self.unsent = bytearray(protocol.MAGIC + self.nonce)

    @property
    def closes(self) -> bool:
        """Whether it ends when all is sent; what comes is ignored."""
        return self.peer is not None and self.peer.closes

    def needed_bytes(self) -> int:
        """Returns how many bytes must arrive before there is more to read."""
        if self.peer is None:
            return protocol.PROOF_BYTES
        if len(self.received) < protocol.FRAME_HEADER_BYTES:
            return protocol.FRAME_HEADER_BYTES
        _, length = protocol.frame_header(
            bytes(self.received[: protocol.FRAME_HEADER_BYTES])
        )
        return protocol.FRAME_HEADER_BYTES + length


class Server:
    """Serves the connections of one job. Not thread-safe."""

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        generations: Generations | None = None,
        on_report: Callable[[Report], None] | None = None,
        *,
        num_guests: int = 0,
        tls: ssl.SSLContext | None = None,
        on_agent: Callable[[protocol.Identity, Stream, bytes], None]
        | None = None,
    ) -> None:
        """Serves on `listener`, which it owns from now on.

        Args:
            listener: A socket that listens.
            secret: The secret that a rank of the job must know.
            generations: Who is in; None: nobody comes in.
            on_report: Called with what a rank tells of itself.
            num_guests: How many come who are no ranks.
            tls: What TCP connections use; None: no TLS.
            on_agent: Gets the connection of an agent or a leader that has
                proved itself, or of a rank with a result, and the bytes that
                must be sent to it first.
        """
        self._listeners: list[socket.socket] = []
        self._secret = secret
        self._generations = generations
        self._on_report = on_report
        self._num_guests = num_guests
        self._on_agent = on_agent
        self._tls = tls
        self._connections: set[_Connection] = set()
        self._selector = selectors.DefaultSelector()
        self.add_listener(listener)

    def add_listener(self, listener: socket.socket) -> None:
        """Serves on `listener` too, which it owns from now on."""
        listener.setblocking(False)
        self._listeners.append(listener)
        self._selector.register(listener, selectors.EVENT_READ, listener)

    def fileno(self) -> int:
        """Returns a descriptor that is readable when `step()` has work."""
        # An epoll descriptor: it can be watched by another epoll.
        return self._selector.fileno()

    def next_deadline(self) -> float | None:
        """Returns the monotonic time by which `step()` must be called."""
        deadlines = [c.deadline for c in self._connections if c.deadline]
        if self._generations is not None:
            deadlines += self._generations.deadlines()
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
        now = time.monotonic()
        for connection in list(self._connections):
            if connection.deadline and connection.deadline <= now:
                self._drop(connection)
        if self._generations is not None:
            self._generations.step(now)
        self.flush()

    def flush(self) -> None:
        """Sends what the ranks must hear. Call it after a change."""
        # Others must hear of those who are lost here.
        while [
            one
            for one in list(self._connections)
            if (one.unsent or one.closes) and not self._flush(one)
        ]:
            pass

    def has_connections(self) -> bool:
        """Whether anybody is connected; any thread may ask."""
        return bool(self._connections)

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
        deadline = time.monotonic() + protocol.HANDSHAKE_SECONDS
        connection = _Connection(stream, deadline)
        self._connections.add(connection)
        self._selector.register(stream, selectors.EVENT_READ, connection)
        self._flush(connection)

    def _make_room(self) -> None:
        # Ranks prove themselves at once. So the oldest unproved connection is
        # the least likely to come from a rank, if it comes from a host that
        # has most of them.
        num_ranks = 0 if self._generations is None else self._generations.size
        unproved = [c for c in self._connections if c.peer is None]
        if len(unproved) >= num_ranks + self._num_guests + _SPARE_CONNECTIONS:
            counts = Counter(c.stream.origin for c in unproved)
            ((worst, _),) = counts.most_common(1)
            crowd = [c for c in unproved if c.stream.origin == worst]
            self._drop(min(crowd, key=lambda c: c.deadline or 0.0))

    def _serve(self, connection: _Connection) -> None:
        self._receive(connection)
        while connection in self._connections and connection.stream.has_more():
            self._receive(connection)

    def _receive(self, connection: _Connection) -> None:
        if not self._flush(connection) or connection.closes:
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
        if len(connection.received) < (needed := connection.needed_bytes()):
            if needed > _MAX_MESSAGE_BYTES:
                self._lose(connection)
            return
        message = bytes(connection.received)
        connection.received.clear()
        if connection.peer is None:
            self._authenticate(connection, message)
        else:
            self._take_frame(connection, connection.peer, message)

    def _flush(self, connection: _Connection) -> bool:
        """Sends what it can; returns False if the connection has ended."""
        if connection not in self._connections:
            return False
        if not connection.stream.send(connection.unsent):
            self._lose(connection)
            return False
        if connection.closes and not connection.unsent:
            self._drop(connection)
            return False
        events = selectors.EVENT_READ | connection.stream.send_event
        if connection.closes:  # whatever it says is ignored
            events = connection.stream.send_event
            if connection.deadline is None:
                connection.deadline = (
                    time.monotonic() + protocol.HANDSHAKE_SECONDS
                )
        self._selector.modify(connection.stream, events, connection)
        return True

    def _drop(self, connection: _Connection) -> None:
        self._connections.discard(connection)
        self._selector.unregister(connection.stream)
        connection.stream.close()

    def _lose(self, connection: _Connection) -> None:
        """Ends a connection, which its peer should not have ended yet."""
        self._drop(connection)
        if connection.peer is not None and self._generations is not None:
            self._generations.lost(connection.peer, time.monotonic())

    # ---- Messages ----

    def _authenticate(self, connection: _Connection, message: bytes) -> None:
        identity = protocol.check_proof(self._secret, connection.nonce, message)
        if identity is None:
            self._drop(connection)
            return
        connection.deadline = None
        # Not yet sent: if it has hung up since, those who need it must know.
        connection.unsent += protocol.server_mac(
            self._secret, connection.nonce, message
        )
        if identity.role in (Role.AGENT, Role.GIVER, Role.LEADER):
            self._hand_over(connection, identity)
        elif self._generations is None:
            self._drop(connection)
        else:
            connection.peer = peer = Peer(identity, connection.unsent)
            refusal = self._generations.refusal(identity)
            if refusal is not None:
                peer.refuse(*refusal)
            elif identity.role == Role.MEMBER:
                self._generations.joined(peer, time.monotonic())

    def _hand_over(
        self, connection: _Connection, identity: protocol.Identity
    ) -> None:
        if self._on_agent is None:
            self._drop(connection)
            return
        self._connections.discard(connection)
        self._selector.unregister(connection.stream)
        unsent = bytes(connection.unsent)
        self._on_agent(identity, connection.stream, unsent)

    def _take_frame(
        self, connection: _Connection, peer: Peer, message: bytes
    ) -> None:
        kind, _ = protocol.frame_header(message[: protocol.FRAME_HEADER_BYTES])
        body = message[protocol.FRAME_HEADER_BYTES :]
        if peer.identity.role == Role.REPORTER:
            makes_sense = self._take_report(peer, kind, body)
        else:
            assert self._generations is not None
            now = time.monotonic()
            makes_sense = self._generations.said(peer, kind, body, now)
        if not makes_sense:
            self._lose(connection)

    def _take_report(self, peer: Peer, kind: int, body: bytes) -> bool:
        told = (
            protocol.unpack_report(body) if kind == FrameType.REPORT else None
        )
        if told is None:
            return False
        if told.kind != ReportKind.STRAGGLER:  # of the one that has proved
            told = told._replace(rank=peer.identity.rank)
        if self._on_report is not None:
            self._on_report(told)
        if told.kind != ReportKind.STATUS:  # of which more will come
            peer.send(FrameType.ACCEPTED)
            peer.closes = True
        return True
