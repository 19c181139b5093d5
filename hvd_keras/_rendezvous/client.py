"""A rank's side of the rendezvous: `exchange()` and `abort()`."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import select
import socket
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from hvd_keras._common import processes
from hvd_keras._rendezvous import addresses, announcement, dialing, protocol
from hvd_keras._rendezvous.errors import error_class
from hvd_keras._rendezvous.protocol import FrameType, Identity, Report, Role
from hvd_keras.exceptions import (
    HvdError,
    InternalError,
    LaunchError,
    PeerLostError,
    StalledError,
)

if TYPE_CHECKING:
    import ssl

_RETRY_SECONDS = 0.02
_PROBE_SECONDS = 1.0
# Less than a server of TLS waits for the other side to begin.
_SILENT_SECONDS = 0.8 * protocol.HANDSHAKE_SECONDS
_SERVER_REPLY_SECONDS = 10.0  # for its answer after its own deadline


class _TlsMismatchError(LaunchError):
    """The two sides disagree on TLS, which waiting does not mend."""


class Rendezvous:
    """One rank's connection to the server, for one generation.

    Not thread-safe. As a context manager it says goodbye if all went well. If
    an exception leaves the block, it tells the others the reason.

    Attributes:
        generation: What it has joined, the same on all ranks.
        seat: The place of this process in it, if the server gives it.
        secret: The secret of the job.
        identity: The identity of this process; it has the rank of the seat.
    """

    def __init__(
        self,
        address: str,
        secret: bytes,
        identity: Identity,
        *,
        timeout_seconds: float,
        warning_seconds: float = 0.0,
        on_notice: Callable[[str], None] | None = None,
        is_of_rank_0: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connects, proves both sides to each other and asks to join.

        Args:
            address: The address of the server; see `addresses`.
            secret: The secret of the job.
            identity: The identity of this process.
            timeout_seconds: Limit for the connection and for each exchange.
            warning_seconds: After this time a late exchange gives notices; 0:
                never.
            on_notice: Called with each notice.
            is_of_rank_0: Whether rank 0 serves, which may begin until the
                timeout. Then `address` is that of a TCP port or the path of an
                announcement.
            tls: What a TCP connection uses; None: no TLS.

        Raises:
            LaunchError: There is no server at `address`, or it refuses.
            StalledError: Rank 0 did not serve in time.
            HvdError: The announcement says that rank 0 has failed or died.
        """
        self._address = address
        self._is_tcp = addresses.is_tcp(address)
        self._is_of_rank_0 = is_of_rank_0
        self._announced_at = None
        if is_of_rank_0 and not self._is_tcp:
            self._announced_at = address
        self._tls = tls if self._is_tcp else None
        self.identity = identity
        self.secret = secret
        self._timeout_seconds = timeout_seconds
        self._warning_seconds = warning_seconds
        self._on_notice = on_notice
        self._num_rounds = 0
        self._news = protocol.News(0)
        self.generation = identity.generation
        self.seat: protocol.Seat | None = None
        deadline = time.monotonic() + timeout_seconds
        hello = self._meet(deadline)
        try:
            self._prove_each_other(secret, hello, deadline)
            if identity.role == Role.MEMBER:
                self._await_generation(deadline)
        except BaseException:
            self._sock.close()
            raise

    def exchange(self, value: bytes) -> list[bytes]:
        """Gives `value` and returns the values of all ranks, in rank order.

        Raises:
            PeerLostError: A rank died or gave up.
            StalledError: A rank did not come in time.
        """
        if len(value) > protocol.MAX_VALUE_BYTES:
            raise InternalError(
                f"A value must have at most {protocol.MAX_VALUE_BYTES} bytes. "
                f"Received: {len(value)} bytes."
            )
        header = protocol.EXCHANGE_HEADER.pack(
            self._num_rounds,
            _milliseconds(self._timeout_seconds),
            _milliseconds(self._warning_seconds),
        )
        self._num_rounds += 1
        limit = self._timeout_seconds + _SERVER_REPLY_SECONDS
        deadline = time.monotonic() + limit
        self._send(protocol.frame(FrameType.EXCHANGE, header + value))
        while True:
            kind, body = self._receive_frame(deadline)
            if kind == FrameType.RESULT:
                return protocol.unpack_values(body, self.identity.size)
            if kind == FrameType.NOTICE and self._on_notice is not None:
                self._on_notice(body.decode("utf-8", "replace"))

    def fileno(self) -> int:
        """Returns a descriptor; `check` is due when it is readable."""
        return self._sock.fileno()

    def check(self) -> None:
        """Hears between two exchanges whether another rank has given up.

        Raises:
            HvdError: It has, with this error.
        """
        while self._has_more():
            deadline = time.monotonic() + _SERVER_REPLY_SECONDS
            kind, body = self._receive_frame(deadline)
            if kind == FrameType.NOTICE and self._on_notice is not None:
                self._on_notice(body.decode("utf-8", "replace"))

    def _has_more(self) -> bool:
        pending = getattr(self._sock, "pending", None)  # of TLS
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        return bool(poll.poll(0) or (pending and pending()))

    def abort(self, reason: str) -> None:
        """Ends the exchange for all ranks and tells them `reason`."""
        with contextlib.suppress(HvdError):  # then they already know
            self._send(protocol.frame(FrameType.ABORT, protocol.text(reason)))
        self._sock.close()

    def close(self) -> None:
        """Leaves normally: this rank has all it needs.

        In an elastic job the connection stays, for news; see `hang_up`.
        """
        with contextlib.suppress(HvdError):
            self._send(protocol.frame(FrameType.GOODBYE))
        if self.seat is None:
            self._sock.close()

    def hang_up(self) -> None:
        """Closes the connection that `close` has left open."""
        self._sock.close()

    def news(self) -> protocol.News:
        """Returns what the server has told last.

        Raises:
            HvdError: The server is gone.
        """
        while self._has_more():
            deadline = time.monotonic() + _SERVER_REPLY_SECONDS
            kind, body = self._receive_frame(deadline)
            if kind == FrameType.NEWS and body:
                self._news = protocol.News(body[0])
        return self._news

    def tell(self, told: Report) -> None:
        """Sends a report, without waiting until it was taken."""
        self._send(protocol.frame(FrameType.REPORT, protocol.pack_report(told)))

    def tell_last(self, told: Report) -> None:
        """Sends a report, waits until it was taken, and hangs up."""
        self.tell(told)
        self._receive_frame(time.monotonic() + 1.0)
        self._sock.close()

    def __enter__(self) -> Rendezvous:
        return self

    def __exit__(
        self, kind: object, value: BaseException | None, trace: object
    ) -> None:
        if value is None:
            self.close()
        else:
            self.abort(f"{type(value).__name__}: {value}")

    def detach(self) -> socket.socket:
        """Returns the socket, which the caller owns from now on."""
        return self._sock

    @property
    def own_address(self) -> str:
        """Where other hosts reach this one: its end of the connection."""
        if not self._is_tcp:
            return "127.0.0.1"  # they are other containers of this machine
        return str(self._sock.getsockname()[0])

    def _meet(self, deadline: float) -> bytes:
        """Connects; returns the server's first message."""
        if not self._is_of_rank_0:
            self._sock = self._connect(self._address, deadline)
            return self._first_message(deadline)
        while True:
            try:
                address = self._address
                if self._announced_at is not None:
                    address = dialing.announced_address(address)
                self._sock = self._connect(address, deadline)
                return self._first_message(deadline)
            except _TlsMismatchError:
                raise
            except LaunchError as error:
                self._raise_announced_failure()
                if time.monotonic() >= deadline:
                    is_agent = self.identity.role == Role.AGENT
                    hint = "Has rank 0 called `init()`?"
                    if is_agent:
                        hint = "Does hvdrun run on host 0, with --node-rank 0?"
                    raise StalledError(
                        f"{error} It did not within HVD_START_TIMEOUT. {hint}"
                    ) from error
            except PeerLostError:
                # It may be the server of the last generation, just ending.
                self._raise_announced_failure()
            time.sleep(_RETRY_SECONDS)

    def _connect(self, address: str, deadline: float) -> socket.socket:
        sock = dialing.connect(address, deadline)
        if self._tls is None:
            return sock
        try:
            return self._tls.wrap_socket(sock)
        except OSError as error:
            sock.close()
            # Other errors may be those of a server that is just ending.
            reason = str(getattr(error, "reason", None) or "EOF")
            kind = LaunchError if "EOF" in reason else _TlsMismatchError
            raise kind(
                f"The server at {address!r} must speak TLS 1.3 and show a "
                f"certificate of HVD_TLS_CA. Received: {error}."
            ) from error

    def _first_message(self, deadline: float) -> bytes:
        if not self._is_tcp:
            self._server_pid = protocol.peer_credentials(self._sock).pid
        began = time.monotonic()
        try:
            return self._receive(protocol.HELLO_BYTES, deadline)
        except PeerLostError:
            self._sock.close()
            silent_seconds = time.monotonic() - began
            is_plain = self._is_tcp and self._tls is None
            if is_plain and silent_seconds > _SILENT_SECONDS:
                raise _TlsMismatchError(
                    f"The server at {self._address!r} must speak first. "
                    f"Received: nothing for {silent_seconds:.0f} s. It may "
                    "wait for TLS: then set HVD_TLS_CERT, HVD_TLS_KEY and "
                    "HVD_TLS_CA on all hosts."
                ) from None
            raise
        except BaseException:
            self._sock.close()
            raise

    def _raise_announced_failure(self) -> None:
        """Raises if the announcement says that nobody will serve any more."""
        if self._announced_at is not None:
            found = announcement.read(self._announced_at)
            failure = found.why_not() if found else None
            if failure is not None:
                name, text = failure
                raise error_class(name)(text)

    def _await_generation(self, deadline: float) -> None:
        if self.identity.size == 0:
            deadline = math.inf  # the members may train for long before
        kind, body = self._receive_frame(deadline)
        if kind != FrameType.JOINED:
            raise InternalError(
                "The rendezvous server must first say which generation this "
                f"rank has joined. Received: a frame of type {kind}."
            )
        self.generation = protocol.unpack_generation(body)
        self.seat = protocol.unpack_seat(body)
        if self.seat is not None:
            self.identity = dataclasses.replace(
                self.identity,
                rank=self.seat.rank,
                size=self.seat.size,
                local_rank=self.seat.local_rank,
            )

    def _prove_each_other(
        self, secret: bytes, hello: bytes, deadline: float
    ) -> None:
        magic, nonce = (
            hello[: len(protocol.MAGIC)],
            hello[len(protocol.MAGIC) :],
        )
        if magic != protocol.MAGIC:
            raise LaunchError(
                "The server at HVD_RENDEZVOUS must speak version "
                f"{protocol.MAGIC!r} of the rendezvous. Received: {magic!r}. "
                "Are hvdrun and the ranks of the same version of hvd_keras?"
            )
        message = protocol.proof(secret, nonce, self.identity)
        self._send(message)
        try:
            mac = self._receive(protocol.MAC_BYTES, deadline)
        except PeerLostError:
            if self._server_has_ended():
                raise
            raise LaunchError(
                "The rendezvous server refused this process: HVD_SECRET must "
                "be the secret of the job. Received: another one "
                f"({self.identity.who})."
            ) from None
        if mac != protocol.server_mac(secret, nonce, message):
            raise LaunchError(
                "The rendezvous server must know HVD_SECRET. Received: a wrong "
                "proof. Nothing was sent to it."
            )

    def _send(self, data: bytes) -> None:
        try:
            self._sock.settimeout(protocol.HANDSHAKE_SECONDS)
            self._sock.sendall(data)
        except OSError:
            # Its last message may still be unread. Reading raises its error.
            while True:
                self._receive_frame(time.monotonic() + 1.0)

    def _receive_frame(self, deadline: float) -> tuple[int, bytes]:
        """Returns the next frame; raises the error in an ERROR frame."""
        header = self._receive(protocol.FRAME_HEADER_BYTES, deadline)
        kind, length = protocol.frame_header(header)
        cap = self.identity.size * (protocol.MAX_VALUE_BYTES + 4)
        if length > max(cap, protocol.MAX_TEXT_BYTES):
            raise InternalError(
                f"A frame of the rendezvous server must have at most {cap} "
                f"bytes. Received: {length} bytes."
            )
        body = self._receive(length, deadline)
        if kind == FrameType.ERROR:
            name, _, message = body.decode("utf-8", "replace").partition("\n")
            raise error_class(name)(message)
        return kind, body

    def _receive(self, num_bytes: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < num_bytes:
            left = deadline - time.monotonic()
            try:
                if left <= 0:
                    raise TimeoutError
                self._sock.settimeout(None if left == math.inf else left)
                part = self._sock.recv(num_bytes - len(data))
            except TimeoutError:
                raise StalledError(
                    "The rendezvous server did not answer within "
                    f"{self._timeout_seconds:g} s (HVD_START_TIMEOUT) on "
                    f"{self.identity.who}."
                ) from None
            except OSError as error:
                self._raise_tls_alert(error)
                part = b""
            if not part:
                raise self._server_lost()
            data += part
        return bytes(data)

    def _raise_tls_alert(self, error: OSError) -> None:
        """Raises if the server says that it refuses our certificate."""
        reason = str(getattr(error, "reason", ""))  # of an SSLError
        if self._tls is not None and "ALERT" in reason:
            raise _TlsMismatchError(
                f"The server at {self._address!r} must accept HVD_TLS_CERT. "
                f"Received: {reason}. Is it signed by the server's HVD_TLS_CA?"
            ) from error

    def _server_lost(self) -> PeerLostError:
        is_rank_0 = self._is_of_rank_0 and self.identity.role != Role.AGENT
        who = "Rank 0" if is_rank_0 else "hvdrun"
        where = self._address if self._is_tcp else f"pid {self._server_pid}"
        return PeerLostError(
            f"{who} ({where}), which runs the rendezvous server, went away "
            f"during `init()` ({self.identity.who})."
        )

    def _server_has_ended(self) -> bool:
        if self._is_tcp:
            try:
                addresses.connect(self._address, _PROBE_SECONDS).close()
            except OSError:
                return True
            return False
        # A process that ends closes its sockets a moment before.
        for _ in range(10):
            found = processes.find(self._server_pid)
            if found is None or not found.runs:
                return True
            time.sleep(_RETRY_SECONDS)
        return False


def reporter(
    address: str,
    secret: bytes,
    identity: Identity,
    tls: ssl.SSLContext | None = None,
) -> Rendezvous:
    """Returns a connection for `tell`; see `Rendezvous`."""
    caller = dataclasses.replace(identity, role=Role.REPORTER)
    return Rendezvous(address, secret, caller, timeout_seconds=1.0, tls=tls)


def _milliseconds(seconds: float) -> int:
    return min(int(seconds * 1e3), 0xFFFFFFFF)
