"""One generation of the job: the exchanges while all ranks call `init()`."""

from __future__ import annotations

import math

from hvd_keras._rendezvous import protocol
from hvd_keras._rendezvous.protocol import FrameType, Identity


class Peer:
    """A process that has proved who it is, and what it must be told."""

    def __init__(self, identity: Identity, unsent: bytearray) -> None:
        self.identity = identity
        self.unsent = unsent  # what was not yet sent
        self.closes = False  # when that is sent
        self.generation: Generation | None = None  # that it was let in
        self.rank = identity.rank  # there

    def send(self, kind: FrameType, body: bytes = b"") -> None:
        """Tells it something."""
        self.unsent += protocol.frame(kind, body)

    def refuse(self, error: str, message: str) -> None:
        """Tells it an error, and nothing after that."""
        self.send(FrameType.ERROR, protocol.text(f"{error}\n{message}"))
        self.closes = True

    def hang_up(self) -> None:
        """Tells it nothing any more."""
        self.unsent.clear()
        self.closes = True


class Generation:
    """The ranks that have come, and their values for the current exchange."""

    def __init__(self, number: int, size: int) -> None:
        self.number = number
        self.size = size
        self.members: dict[int, Peer] = {}  # by rank, while they stay
        self.failure: tuple[str, str] | None = None  # class name, message
        self._came: set[int] = set()
        self._left: set[int] = set()
        self._round = 0
        self._values: dict[int, bytes] = {}
        self._fails_at = math.inf  # monotonic
        self._notices_at: dict[int, float] = {}  # by waiting rank
        self._waits_since = 0.0

    @property
    def ended(self) -> bool:
        """Whether the generation is over: it failed, or all ranks have left."""
        return self.failure is not None or len(self._left) == self.size

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and all ranks know how."""
        return self.ended and len(self._came) == self.size

    def admit(self, peer: Peer) -> None:
        """Lets a peer in; if the generation has failed, only to learn that."""
        peer.generation = self
        self._came.add(peer.rank)
        if self.failure is None:
            self.members[peer.rank] = peer

    def said(self, peer: Peer, kind: int, body: bytes, now: float) -> bool:
        """Takes a frame of a peer; returns whether it makes sense."""
        rank, process = peer.rank, peer.identity.process
        if self.failure is not None:
            pass  # the rank will find the error when it reads
        elif self.members.get(rank) is not peer:
            peer.refuse(
                "LaunchError",
                f"Rank {rank} has left generation {self.number}. Received: "
                "a message for that generation, which comes too late "
                f"({process}).",
            )
        elif kind == FrameType.GOODBYE:
            self._leave(rank)
        elif kind == FrameType.ABORT:
            self._leave(rank)
            what = f"Rank {rank} ({process}) gave up in `init()`"
            self.fail("PeerLostError", f"{what}: {protocol.read_text(body)}")
        elif kind == FrameType.EXCHANGE and self._bring(rank, body, now):
            if len(self._values) == self.size:
                self._end_round()
        else:
            return False
        return True

    def lost(self, peer: Peer, what: str = "") -> None:
        """Notes that the connection of a peer has ended."""
        if self.members.get(peer.rank) is peer:
            gone = f"went away during `init()` ({peer.identity.process})"
            self.fail_without(peer.rank, what or gone)

    def fail_without(self, rank: int, what: str) -> None:
        """Ends the generation if the others need a rank that has ended."""
        if not self.ended and rank not in self._left:
            text = f"Rank {rank} {what} before the job was up."
            self.fail("PeerLostError", text)

    def fail(self, error: str, message: str) -> None:
        """Ends the generation, and tells its members."""
        if self.failure is None:
            self.failure = (error, message)
        for member in self.members.values():
            member.refuse(error, message)
        self.members.clear()
        self._stop_waiting()

    def _bring(self, rank: int, body: bytes, now: float) -> bool:
        """Takes the EXCHANGE frame of `rank`; False if it makes no sense."""
        if len(body) < protocol.EXCHANGE_HEADER.size or rank in self._values:
            return False
        header = body[: protocol.EXCHANGE_HEADER.size]
        number, timeout_ms, warning_ms = protocol.EXCHANGE_HEADER.unpack(header)
        if number != self._round:
            return False
        if not self._values:
            self._waits_since = now
            self._fails_at = math.inf
        self._values[rank] = body[protocol.EXCHANGE_HEADER.size :]
        self._fails_at = min(self._fails_at, now + timeout_ms / 1e3)
        if warning_ms:
            self._notices_at[rank] = now + warning_ms / 1e3
        return True

    def _end_round(self) -> None:
        """Tells all ranks the values of all; begins the next exchange."""
        values = [self._values[rank] for rank in range(self.size)]
        self._stop_waiting()
        self._round += 1
        packed = protocol.pack_values(values)
        for member in self.members.values():
            member.send(FrameType.RESULT, packed)

    def _leave(self, rank: int) -> None:
        self.members.pop(rank, None)
        self._left.add(rank)

    def deadlines(self) -> list[float]:
        """Returns the times at which something is due."""
        if not self._values:
            return []
        return [self._fails_at, *self._notices_at.values()]

    def step(self, now: float, error: str) -> list[int]:
        """Does what is due.

        If ranks are too late, it fails with that class of error, and returns
        them.
        """
        if self._values and self._fails_at <= now:
            missing = self._missing()
            seconds = self._fails_at - self._waits_since
            text = (
                f"All {self.size} ranks must call `init()` within {seconds:g} "
                "s (HVD_START_TIMEOUT) of each other. "
            )
            self.fail(error, text + self._who_is_missing())
            return missing
        notice = protocol.text(
            f"`init()` has waited {now - self._waits_since:.0f} s for other "
            f"ranks. {self._who_is_missing()}"
        )
        for rank in [r for r, at in self._notices_at.items() if at <= now]:
            del self._notices_at[rank]
            if rank in self.members:
                self.members[rank].send(FrameType.NOTICE, notice)
        return []

    def _missing(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self._values]

    def _who_is_missing(self) -> str:
        return (
            f"Missing ranks: {', '.join(map(str, self._missing()))}; waiting "
            f"ranks: {', '.join(map(str, sorted(self._values)))}."
        )

    def _stop_waiting(self) -> None:
        self._values.clear()
        self._notices_at.clear()
        self._fails_at = math.inf
