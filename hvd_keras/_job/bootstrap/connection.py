"""One connection of the rendezvous server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_keras._job.bootstrap import wire
from hvd_keras._job.bootstrap.stream import Stream

if TYPE_CHECKING:
    from hvd_keras._job.bootstrap.membership import Membership


class Connection:
    """One connection; `identity` is None until the other side proves itself."""

    def __init__(self, stream: Stream, deadline: float) -> None:
        self.stream = stream
        self.nonce = wire.new_nonce()
        self.identity: wire.Identity | None = None
        self.membership: Membership | None = None
        self.deadline: float | None = deadline  # then it is dropped
        self.received = bytearray()
        self.unsent = bytearray(wire.MAGIC + self.nonce)
        self.close_when_sent = False
        self.member: int | None = None  # its number, in an elastic job

    def needed_bytes(self) -> int:
        """Returns how many bytes must arrive before there is more to read."""
        if self.identity is None:
            return wire.PROOF_BYTES
        if len(self.received) < wire.FRAME_HEADER_BYTES:
            return wire.FRAME_HEADER_BYTES
        _, length = wire.frame_header(
            bytes(self.received[: wire.FRAME_HEADER_BYTES])
        )
        return wire.FRAME_HEADER_BYTES + length
