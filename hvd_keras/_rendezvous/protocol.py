"""The bytes that travel between a rank and the rendezvous server.

The server speaks first (`Hello`). The rank proves that it knows the secret of
the job and says who it is (`Proof`). Then the server proves itself (a MAC).
Both MACs cover both nonces, under different labels, so they can neither be
replayed nor reflected. Only then come frames: a type, a length, a body. The
first frame tells a member the generation that it has joined. There is no pickle
here, and each length has a cap. After its proof, an agent speaks
with the launcher in frames of their own (`hvd_keras.run.hosts.link`), and a
rank may hand over a result (`giving`).
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import hmac
import os
import socket
import struct
from typing import NamedTuple

from hvd_keras.exceptions import InternalError

MAGIC = b"HVDBOOT4"
NONCE_BYTES = 32
MAC_BYTES = 32
HANDSHAKE_SECONDS = 5.0
MAX_VALUE_BYTES = 64 << 10  # of one rank in one exchange
MAX_TEXT_BYTES = 4 << 10
HELLO_BYTES = len(MAGIC) + NONCE_BYTES

_RANK_LABEL = b"hvd_keras rendezvous 3: rank to server"
_SERVER_LABEL = b"hvd_keras rendezvous 3: server to rank"
MAX_HOST_BYTES = 64  # the limit of Linux for the name of a host
# Role, rank, size, generation, pid, local rank, host.
_IDENTITY = struct.Struct(f"!BIIIII{MAX_HOST_BYTES}s")
PROOF_BYTES = NONCE_BYTES + _IDENTITY.size + MAC_BYTES
_FRAME = struct.Struct("!BI")
FRAME_HEADER_BYTES = _FRAME.size
EXCHANGE_HEADER = struct.Struct("!III")  # round, timeout ms, warning ms
_U32 = struct.Struct("!I")
_REPORT = struct.Struct("!BI")  # kind, rank
_SEAT = struct.Struct("!IIIIII")
_CREDENTIALS = struct.Struct("3i")


class Role(enum.IntEnum):
    """Why a process connects."""

    MEMBER = 0  # to take part in the exchanges of the next generation
    REPORTER = 1  # to say that its rank is ending
    AGENT = 2  # to start the ranks of its host; rank and size count hosts
    LEADER = 3  # to rank 0, to speak for the ranks of its host
    GIVER = 4  # to hand over what its function has returned


class FrameType(enum.IntEnum):
    """The first byte of a frame."""

    EXCHANGE = 1  # rank: header, value
    RESULT = 2  # server: the values of all ranks
    ERROR = 3  # server: class name, newline, text; ends the generation
    ABORT = 4  # rank: text; ends the generation
    GOODBYE = 5  # rank: needs nothing more of this generation
    NOTICE = 6  # server: text, while an exchange is late
    ACCEPTED = 7  # server: a report was taken
    JOINED = 8  # server: the generation, in an elastic job a place
    NEWS = 9  # server, elastic: a byte of `News`
    REPORT = 10  # reporter: a `Report`


class News(enum.IntFlag):
    """What a member of an elastic job must know while it trains."""

    NOTHING = 0
    CHANGE_DUE = 1  # the members should form the next generation soon
    MUST_LEAVE = 2  # this member should leave then


class Seat(NamedTuple):
    """The place of a member of an elastic job in a generation."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


@dataclasses.dataclass(frozen=True)
class Identity:
    """Who a rank claims to be; its MAC covers this."""

    role: Role
    rank: int  # in an elastic job the number of the member, until it has a seat
    size: int  # 0: the rendezvous server gives the seats
    generation: int  # the last generation that this process was told; 0: none
    pid: int
    local_rank: int = 0
    host: str = ""  # the name of its host; "": there is one host

    @property
    def process(self) -> str:
        """Names the process in messages."""
        return process_name(self.host, self.pid)

    @property
    def who(self) -> str:
        """Names the rank, or the host if an agent speaks."""
        kind = "host" if self.role == Role.AGENT else "rank"
        return f"{kind} {self.rank}"


class Credentials(NamedTuple):
    """What the kernel says of the other end of a Unix socket."""

    pid: int
    uid: int
    gid: int


class ReportKind(enum.IntEnum):
    """What a rank tells the launcher."""

    ENDS = 0  # it does not fail; text: the call of its script that ends it
    FAILS = 1  # text: the error, its class in front
    PREEMPTED = 2  # it had to stop; text: what it has saved
    # Of members of an elastic job:
    LEAVES = 3  # on purpose; text: why
    LEAVES_SOON = 4  # at the next change
    ELASTIC = 5  # it goes on when others are lost, and takes new ones in
    BEGINS = 6  # rank 0 begins to train, and nobody has given it a state
    STRAGGLER = 7  # of the rank that others wait for, by rank 0; text: how long
    REMARKS = 9  # at its end; text: a packed `remarks.Remark`
    # Of any rank, again and again on one connection:
    STATUS = 8  # text: JSON, how it is doing


class Report(NamedTuple):
    """What a rank tells the launcher, outside of all generations."""

    kind: ReportKind
    rank: int  # it is of; that of STRAGGLER is one of the present generation
    text: str = ""


def process_name(host: str, pid: int) -> str:
    """Returns the name of a process in messages; "" is the only host."""
    return f"host {host}, pid {pid}" if host else f"pid {pid}"


def peer_credentials(sock: socket.socket) -> Credentials:
    """Returns who has connected, or who listened when it connected."""
    data = sock.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
    )
    return Credentials(*_CREDENTIALS.unpack(data))


def is_of_this_user(sock: socket.socket) -> bool:
    """Whether the other end of a Unix socket runs as this user."""
    return peer_credentials(sock).uid == os.geteuid()


def new_nonce() -> bytes:
    """Returns bytes that nobody has seen before."""
    return os.urandom(NONCE_BYTES)


def proof(secret: bytes, server_nonce: bytes, identity: Identity) -> bytes:
    """Returns a rank's answer to the server's hello."""
    *numbers, host = dataclasses.astuple(identity)
    name = host.encode("utf-8", "replace")[:MAX_HOST_BYTES]
    packed = _IDENTITY.pack(*numbers, name)
    body = new_nonce() + packed
    return body + _mac(secret, _RANK_LABEL, server_nonce + body)


def check_proof(
    secret: bytes, server_nonce: bytes, message: bytes
) -> Identity | None:
    """Returns who sent `message`; None if the sender lacks the secret."""
    body, mac = message[:-MAC_BYTES], message[-MAC_BYTES:]
    expected = _mac(secret, _RANK_LABEL, server_nonce + body)
    if len(message) != PROOF_BYTES or not hmac.compare_digest(mac, expected):
        return None
    role, *numbers, name = _IDENTITY.unpack(body[NONCE_BYTES:])
    if role not in set(Role):
        return None
    host = name.rstrip(b"\0").decode("utf-8", "replace")
    # It will be printed.
    host = "".join(c if c.isprintable() else "?" for c in host)
    rank, size, generation, pid, local_rank = numbers
    return Identity(Role(role), rank, size, generation, pid, local_rank, host)


def server_mac(secret: bytes, server_nonce: bytes, message: bytes) -> bytes:
    """Returns the server's proof for the rank that sent `message`."""
    return _mac(secret, _SERVER_LABEL, server_nonce + message)


def _mac(secret: bytes, label: bytes, body: bytes) -> bytes:
    return hmac.new(secret, label + b"\0" + body, hashlib.sha256).digest()


def frame(kind: FrameType, body: bytes = b"") -> bytes:
    """Returns a frame, ready to send."""
    return _FRAME.pack(kind, len(body)) + body


def frame_header(header: bytes) -> tuple[int, int]:
    """Returns the type (not yet checked) and the length of a frame."""
    kind, length = _FRAME.unpack(header)
    return kind, length


def pack_generation(generation: int, seat: Seat | None = None) -> bytes:
    """Returns the body of a JOINED frame."""
    return _U32.pack(generation) + (_SEAT.pack(*seat) if seat else b"")


def unpack_generation(body: bytes) -> int:
    """Returns the generation in the body of a JOINED frame."""
    if len(body) not in (_U32.size, _U32.size + _SEAT.size):
        raise InternalError(
            f"A generation must have {_U32.size} bytes. Received: {len(body)} "
            "bytes."
        )
    (generation,) = _U32.unpack_from(body)
    return int(generation)


def unpack_seat(body: bytes) -> Seat | None:
    """Returns the seat in the body of a JOINED frame, if there is one."""
    if len(body) == _U32.size:
        return None
    return Seat(*_SEAT.unpack_from(body, _U32.size))


def pack_report(told: Report) -> bytes:
    """Returns the body of a REPORT frame."""
    return _REPORT.pack(told.kind, told.rank) + text(told.text)


def unpack_report(body: bytes) -> Report | None:
    """Returns the report in the body of a REPORT frame; None: nonsense."""
    if len(body) < _REPORT.size:
        return None
    kind, rank = _REPORT.unpack_from(body)
    if kind not in set(ReportKind):
        return None
    return Report(ReportKind(kind), rank, read_text(body[_REPORT.size :]))


def text(message: str) -> bytes:
    """Returns a text as bytes, cut to the cap."""
    return message.encode("utf-8", "replace")[:MAX_TEXT_BYTES]


def read_text(body: bytes) -> str:
    """Returns the text in a body, cut to the cap."""
    return body[:MAX_TEXT_BYTES].decode("utf-8", "replace")


def pack_values(values: list[bytes]) -> bytes:
    """Returns the body of a RESULT frame."""
    parts = [_U32.pack(len(value)) + value for value in values]
    return b"".join(parts)


def unpack_values(body: bytes, size: int) -> list[bytes]:
    """Returns the values of `size` ranks in the body of a RESULT frame."""
    values: list[bytes] = []
    offset = 0
    while len(values) < size and offset + _U32.size <= len(body):
        (length,) = _U32.unpack_from(body, offset)
        offset += _U32.size
        values.append(body[offset : offset + length])
        offset += length
    if len(values) != size or offset != len(body):
        raise InternalError(
            f"The result of an exchange must hold {size} values. Received: "
            f"{len(body)} bytes that end elsewhere."
        )
    return values
