"""The connection between the job and the agent of another host.

Both sides have proved that they know the job's secret. They speak in frames:
a kind, a length, a body of bytes or of JSON. Each kind has a limit. There is no
pickle here.

A side that has nothing to say sends a heartbeat. The other side's kernel must
acknowledge it: so a host or a network that falls silent is noticed, and a
process that is only slow, or stopped by its user, is not. An agent sends no
more output than the job has asked for; so heartbeats always get through.
"""

from __future__ import annotations

import enum
import json
import socket
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from hvd_keras._common.json_text import parsed
from hvd_keras._rendezvous.stream import Stream
from hvd_keras.run.system.loop import READ, WRITE, Loop

# Bytes of output that an agent may send before the job has taken them. They
# must fit into the smallest buffer of a socket.
OUTPUT_WINDOW_BYTES = 32 << 10
_HEADER = struct.Struct("!BI")
_MAX_BYTES = 256 << 10
_LARGE_BYTES = 4 << 20


class Kind(enum.IntEnum):
    """The first byte of a frame."""

    BEAT = 0
    # From an agent:
    FACTS = 1  # JSON: what the job must know of the host
    STARTED = 2  # JSON: rank, pid
    OUTPUT = 3  # rank, stream, bytes; none: nothing will come any more
    EXITED = 4  # JSON: rank, exit_status, signal
    FAILED = 5  # JSON: text, exit_status: the agent cannot go on
    SIGNALLED = 6  # JSON: signal: the agent itself got one
    CHECKED = 7  # JSON: answer to a CHECK
    RECORD = 8  # rank, part, piece of a compressed file; none: it ends
    LOOKED = 9  # JSON, empty: the answer to a LOOK is complete
    # From the job:
    START = 16  # JSON: everything that the ranks need
    PROGRAM = 17  # a piece of a program for Python
    SIGNAL = 18  # JSON: signal, ranks (null: all), to_groups
    TAKEN = 19  # JSON: num_bytes of output that were taken
    KILL = 20  # kill what is left of the ranks
    END = 21  # JSON: exit_status of the job; free everything
    REFUSED = 22  # JSON: text
    CHECK = 23  # JSON: what to measure
    LOOK = 24  # JSON: num_samples: look at the ranks, send what they left


_NONSENSE = (
    ArithmeticError, LookupError, RecursionError, TypeError, ValueError,
    struct.error,
)  # fmt: skip
_LIMITS = {Kind.START: _LARGE_BYTES}
OUTPUT_HEADER = struct.Struct("!IB")  # rank, stream
RECORD_HEADER = struct.Struct("!IB")  # rank, index of the part


class Loss(NamedTuple):
    """Why a connection has ended."""

    text: str
    # The other side, on a host or network that is silent, or just was: an agent
    # that has given up leaves its ranks a while.
    may_run: bool = False


def frame(kind: Kind, body: bytes | Mapping[str, Any]) -> bytes:
    """Returns a message, ready to send."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    return _HEADER.pack(kind, len(body)) + body


class Link:
    """One end of the connection. Not thread-safe."""

    def __init__(
        self,
        loop: Loop,
        stream: Stream,
        *,
        on_message: Callable[[Kind, bytes], None],
        on_lost: Callable[[Loss], None],
        heartbeat_seconds: float,
        timeout_seconds: float,
        unsent: bytes = b"",
    ) -> None:
        """Takes over a connection whose sides have proved themselves.

        Args:
            loop: Calls this end when the connection is ready.
            stream: The connection.
            on_message: Called with each message.
            on_lost: Called once with the reason, if the connection ends
                before `close()`.
            heartbeat_seconds: How often to send something.
            timeout_seconds: How long the other side's kernel may be silent.
            unsent: Bytes to send first.
        """
        self._loop = loop
        self._stream = stream
        self._on_message = on_message
        self._on_lost = on_lost
        self._heartbeat_seconds = heartbeat_seconds
        self._timeout_seconds = timeout_seconds
        self._unsent = bytearray(unsent)
        self._received = bytearray()
        self._is_open = True
        self._beats_at = time.monotonic() + heartbeat_seconds
        self.heard_at = time.monotonic()
        stream.sock.setsockopt(
            socket.IPPROTO_TCP,
            socket.TCP_USER_TIMEOUT,
            int(timeout_seconds * 1e3),
        )
        loop.watch(stream, self._on_ready, READ | WRITE)

    @property
    def is_open(self) -> bool:
        """Whether neither side has closed it."""
        return self._is_open

    def send(self, kind: Kind, body: bytes | Mapping[str, Any] = b"") -> None:
        """Sends a message; nothing if the connection has ended."""
        if not self._is_open:
            return
        self._unsent += frame(kind, body)
        self._beats_at = time.monotonic() + self._heartbeat_seconds
        self._flush()

    def next_deadline(self) -> float | None:
        """Returns the monotonic time by which `check()` must be called."""
        return self._beats_at if self._is_open else None

    def check(self) -> None:
        """Sends a heartbeat if one is due."""
        if self._is_open and time.monotonic() >= self._beats_at:
            self.send(Kind.BEAT)

    def is_silent(self) -> bool:
        """Whether nothing has come for too long, not even what waits now."""
        if self._is_open and self._has_timed_out():
            self._on_ready()
        return self._is_open and self._has_timed_out()

    def lose(self, reason: str, *, may_run: bool = False) -> None:
        """Ends the connection because of `reason`; see `Loss`."""
        if self._is_open:
            self.close()
            self._on_lost(Loss(reason, may_run))

    def _lose_stream(self, reason: str) -> None:
        if self._stream.has_timed_out:
            self.lose("the connection timed out", may_run=True)
        else:
            silent, most = (
                time.monotonic() - self.heard_at,
                self._timeout_seconds,
            )
            self.lose(reason, may_run=was_silent(silent, most))

    def close(self) -> None:
        """Hangs up. What the kernel has not taken yet is lost."""
        if self._is_open:
            self._is_open = False
            self._loop.forget(self._stream)
            self._stream.close()

    def _has_timed_out(self) -> bool:
        return time.monotonic() - self.heard_at > self._timeout_seconds

    def _flush(self) -> None:
        if not self._is_open:
            return
        if not self._stream.send(self._unsent):
            self._lose_stream("the connection broke")
            return
        self._loop.change(self._stream, READ | self._stream.send_event)

    def _on_ready(self) -> None:
        self._flush()
        while self._is_open:
            data = self._stream.receive(_MAX_BYTES)
            if data is None:
                if self._unsent:  # TLS may have waited for what was read
                    self._flush()
                break
            if not data:
                self._lose_stream("the connection ended")
                return
            self.heard_at = time.monotonic()
            self._received += data
            self._take_messages()

    def _take_messages(self) -> None:
        while self._is_open and len(self._received) >= _HEADER.size:
            number, length = _HEADER.unpack_from(self._received)
            end = _HEADER.size + length
            try:
                kind = Kind(number)
                if length > _LIMITS.get(kind, _MAX_BYTES):
                    raise ValueError(f"{length} bytes")
                if len(self._received) < end:
                    return
                body = bytes(self._received[_HEADER.size : end])
                del self._received[:end]
                if kind != Kind.BEAT:
                    self._on_message(kind, body)
            except _NONSENSE as error:
                self.lose(f"a message made no sense ({error})")


def was_silent(seconds: float, timeout_seconds: float) -> bool:
    """Whether the other side may have given up a link, and then hung up.

    Args:
        seconds: How long nothing had come when it did.
        timeout_seconds: The longest silence that both sides bear.
    """
    return seconds > timeout_seconds / 2


def read_json(body: bytes) -> dict[str, Any]:
    """Returns the JSON object in the body of a message.

    Raises:
        ValueError: There is none.
    """
    value = parsed(body)
    if not isinstance(value, dict):
        raise ValueError("no JSON object")
    return value
