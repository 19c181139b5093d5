"""Where the processes of an elastic job run, and which are started again."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass
class Slot:
    """A place for one process on a host."""

    host: str
    index: int = 0  # among those of its host
    holder: int | None = None  # the number of its process
    ready_at: float = -math.inf  # monotonic: when it may get the next one
    is_closed: bool = False  # it gets none any more


class Slots:
    """The slots of all hosts, and how many restarts are left."""

    def __init__(
        self,
        max_restarts: int,
        delay_seconds: float,
        cooldown_seconds: Sequence[float] = (0.0, 0.0),
    ) -> None:
        """Has no slots yet.

        Args:
            max_restarts: How often processes may be started again.
            delay_seconds: Time before that.
            cooldown_seconds: Time in which a host gets no process after one
                has failed there: at first, and at most.
        """
        self._least_cooldown, self._most_cooldown = cooldown_seconds
        self._num_failures: dict[str, int] = {}  # by host
        self._cools_until: dict[str, float] = {}  # by host
        self.max_restarts = max_restarts
        self.num_restarts = 0
        self.delay_seconds = delay_seconds
        self._slots: list[Slot] = []
        self._paid_generations: set[int] = set()

    def add_host(self, host: str, num_slots: int) -> None:
        """Adds the slots of a host."""
        self._slots += [Slot(host, index) for index in range(num_slots)]

    def remove_host(self, host: str) -> None:
        """Removes the slots of a host, also those that are held."""
        self._slots = [slot for slot in self._slots if slot.host != host]

    def free(self, now: float) -> list[Slot]:
        """Returns the slots that may get a process at that time."""
        return [slot for slot in self._open() if self.free_at(slot) <= now]

    def next_deadline(self, now: float) -> float | None:
        """Returns when the next slot gets free after `now`; None: never."""
        times = map(self.free_at, self._open())
        return min((at for at in times if at > now), default=None)

    def num_pending(self) -> int:
        """Returns how many slots will get a process again."""
        return sum(s.ready_at > -math.inf for s in self._open())

    def hold(self, slot: Slot, number: int) -> None:
        """Notes that a process was started in a slot."""
        slot.holder, slot.ready_at = number, -math.inf

    def holders(self, host: str) -> list[int]:
        """Returns the processes that run on a host."""
        held = [slot.holder for slot in self._slots if slot.host == host]
        return [number for number in held if number is not None]

    def release(self, number: int, *, closes: bool) -> Slot | None:
        """Notes that a process has ended; returns its slot, if it is there.

        Args:
            number: The process.
            closes: Whether no other process follows.
        """
        for slot in self._slots:
            if slot.holder == number:
                slot.holder, slot.is_closed = None, closes
                return slot
        return None

    def restart(self, slot: Slot, generation: int, now: float) -> bool:
        """Has a slot get a process again, if restarts are left.

        Processes that fail in one generation fail for one reason, so they count
        as one restart.

        Args:
            slot: The slot, whose process has failed.
            generation: The last generation of that process; 0: it was in none.
            now: The present time.
        """
        if generation not in self._paid_generations:
            if self.num_restarts >= self.max_restarts:
                slot.is_closed = True
                return False
            self.num_restarts += 1
            if generation:
                self._paid_generations.add(generation)
            self.cool(slot.host, now)
        slot.ready_at = now + self.delay_seconds
        return True

    def reopen(self, slot: Slot, ready_at: float) -> None:
        """Has a slot get a process again, from that time on."""
        slot.ready_at = ready_at

    def cool(self, host: str, now: float) -> float:
        """Notes a failure on a host; returns when it may be used again."""
        num_failures = self._num_failures.get(host, 0)
        self._num_failures[host] = num_failures + 1
        seconds = min(
            self._least_cooldown * 2.0**num_failures, self._most_cooldown
        )
        self._cools_until[host] = now + seconds
        return now + seconds

    def close(self) -> None:
        """Starts no more."""
        for slot in self._slots:
            slot.is_closed = True

    def free_at(self, slot: Slot) -> float:
        """Returns the monotonic time from which a slot may get a process."""
        return max(slot.ready_at, self._cools_until.get(slot.host, -math.inf))

    def _open(self) -> list[Slot]:
        return [s for s in self._slots if s.holder is None and not s.is_closed]
