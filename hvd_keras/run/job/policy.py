"""What decides about a job: a policy, which hears events and asks for actions.

A policy knows no process, no socket and no clock: it is told the time. `Job`
tells it what happens, and does what it asks for. There are two: `Fixed` and
`Elastic`.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from hvd_keras._records.blame import Blame
from hvd_keras._rendezvous.generations import Generations
from hvd_keras._rendezvous.protocol import Report
from hvd_keras.run.job.outcome import Ends
from hvd_keras.run.ranks.environment import Place
from hvd_keras.run.ranks.rank import Rank


class HostSlots(NamedTuple):
    """A host that is there when the job begins."""

    name: str
    num_slots: int
    is_here: bool = False  # the host of hvdrun


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
class Survey:
    """Look at all ranks, for one has failed."""


@dataclasses.dataclass(frozen=True)
class StartHost:
    """Start the agent of a host."""

    host: str
    num_slots: int


@dataclasses.dataclass(frozen=True)
class EndHost:
    """End the agent of a host, which has no ranks; or wait no more for it."""

    host: str


Action = Say | Start | Signal | Survey | StartHost | EndHost


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

    @property
    def generations(self) -> Generations:
        """Who is in, for the rendezvous server."""

    @property
    def members(self) -> Mapping[int, int] | None:
        """The ranks of the last generation by member; None: they stay."""

    def begin(self, hosts: Sequence[HostSlots], now: float) -> None:
        """Starts the first ranks on the hosts that are there.

        Raises:
            UsageError: They have too few slots.
        """

    def reported(self, told: Report, now: float) -> None:
        """A rank has told something of itself."""

    def exited(self, number: int, now: float) -> None:
        """The process of a rank has ended, or was lost with its host."""

    def interrupted(self, number: int, now: float) -> None:
        """Hvdrun has got a signal that ends jobs; its handler may call this."""

    def host_came(self, host: str, num_slots: int) -> None:
        """A host has come, or has come again."""

    def host_did_not_come(self, host: str, why: str, now: float) -> None:
        """The agent of a host that the policy wanted cannot be started."""

    def host_was_signalled(self, host: str, number: int, now: float) -> bool:
        """An agent got a signal; returns whether it is for the whole job."""

    def host_was_lost(self, host: str, now: float, *, may_run: bool) -> None:
        """The link to a host has ended. Its ranks exit next, or may run."""

    def hosts_were_named(self, slots: Mapping[str, int], now: float) -> None:
        """A program has named the hosts that the job may use."""

    def step(self, now: float) -> None:
        """Does what is due. Call it after all events, and at the deadline."""

    def next_deadline(self, now: float) -> float | None:
        """Returns the time by which `step()` must be called."""

    def goes_on(self) -> bool:
        """Whether the job has not ended."""

    def takes_hosts(self) -> bool:
        """Whether hosts may still come."""

    def ending(self, seconds: float) -> Ending:
        """Returns how the job has ended, after so long a time."""
