"""One membership of the job: the exchanges while all ranks call `init()`."""

from __future__ import annotations

import math

from hvd_keras._job.bootstrap import wire
from hvd_keras._job.bootstrap.connection import Connection


class Membership:
    """The ranks that have come, and their values for the current exchange."""

    def __init__(self, epoch: int, size: int) -> None:
        self.epoch = epoch
        self.size = size
        self.members: dict[int, Connection] = {}  # by rank, while they stay
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
        """Whether the membership is over: it failed, or all ranks have left."""
        return self.failure is not None or len(self._left) == self.size

    @property
    def is_over(self) -> bool:
        """Whether it has ended, and all ranks know how."""
        return self.ended and len(self._came) == self.size

    def admit(self, rank: int, connection: Connection) -> None:
        """Lets `rank` in; if the membership has failed, only to learn that."""
        self._came.add(rank)
        if self.failure is None:
            self.members[rank] = connection

    def needs(self, rank: int) -> bool:
        """Whether the others need `rank` to go on."""
        return not self.ended and rank not in self._left

    def bring(self, rank: int, body: bytes, now: float) -> bool:
        """Takes the EXCHANGE frame of `rank`; False if it makes no sense."""
        if len(body) < wire.EXCHANGE_HEADER.size or rank in self._values:
            return False
        header = body[: wire.EXCHANGE_HEADER.size]
        number, timeout_ms, warning_ms = wire.EXCHANGE_HEADER.unpack(header)
        if number != self._round:
            return False
        if not self._values:
            self._waits_since = now
            self._fails_at = math.inf
        self._values[rank] = body[wire.EXCHANGE_HEADER.size :]
        self._fails_at = min(self._fails_at, now + timeout_ms / 1e3)
        if warning_ms:
            self._notices_at[rank] = now + warning_ms / 1e3
        return True

    def is_round_complete(self) -> bool:
        """Whether all ranks have brought their values."""
        return len(self._values) == self.size

    def next_round(self) -> bytes:
        """Returns the packed values of all ranks; begins the next exchange."""
        values = [self._values[rank] for rank in range(self.size)]
        self._stop_waiting()
        self._round += 1
        return wire.pack_values(values)

    def leave(self, rank: int) -> None:
        """Notes that `rank` needs nothing more."""
        self.members.pop(rank, None)
        self._left.add(rank)

    def fail(self, error: str, message: str) -> list[Connection]:
        """Ends the membership; returns the connections that must be told."""
        if self.failure is None:
            self.failure = (error, message)
        members = list(self.members.values())
        self.members.clear()
        self._stop_waiting()
        return members

    def deadlines(self) -> list[float]:
        """Returns the times at which something is due."""
        if not self._values:
            return []
        return [self._fails_at, *self._notices_at.values()]

    def is_overdue(self, now: float) -> bool:
        """Whether the current exchange has taken too long."""
        return bool(self._values) and self._fails_at <= now

    def overdue(self) -> str:
        """Returns the error for an exchange that has taken too long."""
        seconds = self._fails_at - self._waits_since
        return (
            f"All {self.size} ranks must call `init()` within {seconds:g} s "
            f"(HVD_START_TIMEOUT) of each other. {self._who_is_missing()}"
        )

    def due_notices(self, now: float) -> list[tuple[Connection, bytes]]:
        """Returns who must be told now that others are late, and the text."""
        due = [rank for rank, at in self._notices_at.items() if at <= now]
        for rank in due:
            del self._notices_at[rank]
        text = wire.text(
            f"`init()` has waited {now - self._waits_since:.0f} s for other "
            f"ranks. {self._who_is_missing()}"
        )
        return [(self.members[r], text) for r in due if r in self.members]

    def missing(self) -> list[int]:
        """Returns the ranks that have not brought their values."""
        return [rank for rank in range(self.size) if rank not in self._values]

    def _who_is_missing(self) -> str:
        return (
            f"Missing ranks: {', '.join(map(str, self.missing()))}; waiting "
            f"ranks: {', '.join(map(str, sorted(self._values)))}."
        )

    def _stop_waiting(self) -> None:
        self._values.clear()
        self._notices_at.clear()
        self._fails_at = math.inf
