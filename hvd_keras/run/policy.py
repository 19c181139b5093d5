"""What decides about a job: a policy, which hears events and asks for actions.

A policy knows no process, no socket and no clock: it is told the time. `Job`
tells it what happens, and does what it asks for. There are two: `Fixed` and
`Elastic`.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from hvd_keras._job.bootstrap.wire import Report
from hvd_keras._observe.blame import Blame
from hvd_keras.run.environment import Place
from hvd_keras.run.outcome import Ends
from hvd_keras.run.rank import Rank


class HostSlots(NamedTuple):
    """A host that is there when the job begins."""

    name: str
    num_slots: int
    is_here: bool = False  # the host of hvdrun


# ---- What may happen to a host ----


@dataclasses.dataclass(frozen=True)
class Came:
    """A host has come, or has come again."""

    host: str
    num_slots: int


@dataclasses.dataclass(frozen=True)
class DidNotCome:
    """A host that a policy has asked for cannot be started."""

    host: str
    why: str


@dataclasses.dataclass(frozen=True)
class Signalled:
    """Somebody has sent a signal to the agent of a host."""

    host: str
    number: int


@dataclasses.dataclass(frozen=True)
class Lost:
    """The connection to a host has ended; its ranks exit next."""

    host: str
    may_run: bool = False  # its ranks, for it fell silent


@dataclasses.dataclass(frozen=True)
class Named:
    """A program has named the hosts that the job may use."""

    slots: Mapping[str, int]  # by host


HostEvent = Came | DidNotCome | Signalled | Lost | Named


# ---- What a policy asks for ----


@dataclasses.dataclass(frozen=True)
class Say:
    """Show a line."""

    text: str


@dataclasses.dataclass(frozen=True)
class Start:
    """Start ranks on a host."""

    host: str
    place: Place  # of the host from now on
    ranks: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Signal:
    """Send a signal to ranks, and to what they have started."""

    number: int
    ranks: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Forward:
    """Do as if hvdrun itself had got a signal."""

    number: int


@dataclasses.dataclass(frozen=True)
class Survey:
    """Look at all ranks, for a verdict."""

    is_of_failure: bool = False
    ranks: Mapping[int, int] | None = None  # the present rank of each member


@dataclasses.dataclass(frozen=True)
class StartHost:
    """Start the agent of a host."""

    host: str
    num_slots: int


@dataclasses.dataclass(frozen=True)
class EndHost:
    """End the agent of a host, which has no ranks; or wait no more for it."""

    host: str


Action = Say | Start | Signal | Forward | Survey | StartHost | EndHost


class Ending(NamedTuple):
    """How a job has ended."""

    blame: Blame
    exit_status: int
    text: str = ""  # what to say of it
    has_table: bool = False  # of the ranks
    has_verdict: bool = False  # the records may say more


class Policy(Protocol):
    """Decides what becomes of a job.

    Attributes:
        ranks: All ranks; whoever tells of an event has noted it there before.
        ends: How they have ended.
        actions: What is to be done, in this order.
    """

    ranks: list[Rank]
    ends: Ends
    actions: deque[Action]

    def begin(
        self, server: Any, hosts: Sequence[HostSlots], now: float
    ) -> None:
        """Starts the first ranks.

        Args:
            server: Hears of the ranks.
            hosts: Those that are there.
            now: The time.

        Raises:
            UsageError: They have too few slots.
        """

    def reported(self, told: Report, now: float) -> None:
        """A rank has told something of itself."""

    def exited(self, number: int, now: float) -> None:
        """The process of a rank has ended, or was lost with its host."""

    def interrupted(self, number: int, now: float) -> None:
        """Hvdrun has got a signal that ends jobs; its handler may call this."""

    def host_changed(self, event: HostEvent, now: float) -> None:
        """Something has happened to a host."""

    def asked(self) -> None:
        """The user wants to know what the ranks do."""

    def step(self, now: float) -> None:
        """Does what is due. Call it after all events, and at the deadline."""

    def next_deadline(self, now: float) -> float | None:
        """Returns the time by which `step()` must be called."""

    def goes_on(self) -> bool:
        """Whether the job has not ended."""

    def takes_hosts(self) -> bool:
        """Whether hosts may still come."""

    def shown(self) -> Sequence[Rank]:
        """Returns the ranks that the live table shows."""

    def suspects(self) -> tuple[Sequence[Rank], Ends]:
        """Returns the ranks that a verdict is about."""

    def ending(self, seconds: float) -> Ending:
        """Returns how the job has ended, after so long a time."""
