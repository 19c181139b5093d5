"""The members of an elastic job, and their places in a generation."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Sequence

from hvd_keras._rendezvous.generation import Peer
from hvd_keras._rendezvous.protocol import News, Seat


class State(enum.Enum):
    """What a member does; ARCHITECTURE.md draws how one follows another."""

    AWAY = "its process runs, but has not come, or has to come again"
    WAITING = "it asks for a place in the next generation"
    IN = "it has a place in the last generation"
    LEAVING = "it ends, and nobody waits for it"
    ENDED = "its process has ended"
    SILENT = "it was lost with its host, and may still run"


class Stay(enum.IntEnum):
    """How long a member stays. It never goes back to a lower one."""

    AS_LONG_AS_IT_CAN = 0
    UNTIL_A_CHANGE = 1  # it will leave by itself then
    MUST_LEAVE = 2  # the launcher wants it to leave then


@dataclasses.dataclass(eq=False)
class Member:
    """A process of the job. Its number is never used again."""

    number: int
    host: str
    slot: int = -1  # on its host, which a newcomer may take over; -1: none yet
    has_own_slot: bool = False  # it knows since its start
    is_beside_server: bool = False  # on the host of the launcher
    is_cut_off: bool = False  # its host fell silent
    state: State = State.AWAY
    stay: Stay = Stay.AS_LONG_AS_IT_CAN
    process: str = ""  # what names it in messages; "": it has not come yet
    peer: Peer | None = None  # its last connection
    generation: int = 0  # the last one that it was given a place in
    first: int = 0  # the first one that was complete for it; 0: none yet
    joined: int = 0  # the last one that was
    rank: int = 0  # in `joined`
    told: News = News.NOTHING

    @property
    def is_newcomer(self) -> bool:
        """Whether it has never been in a generation."""
        return self.joined == 0

    @property
    def is_present(self) -> bool:
        """Whether the others wait for it."""
        return self.state in (State.AWAY, State.WAITING, State.IN)

    @property
    def waits(self) -> bool:
        """Whether it waits for the next generation."""
        return self.state == State.WAITING


def ordered(members: Iterable[Member]) -> list[Member]:
    """Returns members by their ranks in the next generation.

    Hosts are in the order of their oldest member, and of the old ranks of those
    that are as old; so are the members of one host. Those that have no old rank
    come last. But the host of the launcher comes first, if a member there has
    all that rank 0 must have: if the network comes apart, half of the ranks can
    go on with the launcher alone, and with rank 0.
    """
    members = list(members)
    newest = max(member.joined for member in members)
    by_rank = sorted(members, key=lambda one: _seniority(one, newest))
    by_host: dict[str, list[Member]] = {}
    for member in by_rank:
        if member.is_beside_server and _is_settled(member, by_rank[0]):
            by_host[member.host] = []
            break
    for member in by_rank:
        by_host.setdefault(member.host, []).append(member)
    return [member for group in by_host.values() for member in group]


def _is_settled(member: Member, oldest: Member) -> bool:
    """Whether a member has the state of the job as surely as `oldest` has."""
    newest = oldest.joined
    return 0 < newest == member.joined and (
        member.first < newest or oldest.first == newest
    )


def _seniority(member: Member, newest: int) -> tuple[int, ...]:
    """Sorts members: the surer one has the state of the job, the earlier.

    Who came in the newest generation may have no state, for that may have ended
    before it began to train. Who was in before has it, also if its last goodbye
    was lost.
    """
    number, rank = member.number, member.rank
    if member.first and member.generation >= newest:
        return 0, member.first, -member.joined, rank, number
    return 1, -member.joined, rank, number


def seats(members: Sequence[Member]) -> list[Seat]:
    """Gives each member its place; their order is that of the ranks.

    A member keeps its slot. One that has none takes the lowest that is free on
    its host. Local ranks are in the order of the slots, so the first one of a
    member is its slot: if it takes the GPU of that number, nobody else has it.
    """
    chooses = [m for m in members if m.is_newcomer and not m.has_own_slot]
    for member in chooses:
        member.slot = -1
    for member in members:
        if member in chooses:
            taken = {m.slot for m in members if m.host == member.host}
            member.slot = min(set(range(len(members))) - taken)
    slots: dict[str, list[int]] = {}
    for member in members:
        slots.setdefault(member.host, []).append(member.slot)
    hosts = list(slots)
    return [
        Seat(
            rank=rank,
            size=len(members),
            local_rank=sorted(slots[member.host]).index(member.slot),
            local_size=len(slots[member.host]),
            cross_rank=hosts.index(member.host),
            cross_size=len(hosts),
        )
        for rank, member in enumerate(members)
    ]


def other_side(last: Sequence[Member]) -> list[Member]:
    """Returns who is on another side of the network than the launcher.

    One that is known to have ended counts for the side of its host, as it does
    for the core.

    Args:
        last: The members of the last generation, by rank.
    """
    return [member for member in last if member.is_cut_off]


def may_go_on(last: Sequence[Member]) -> bool:
    """Whether the side of the network with the launcher may go on.

    It is the rule of the core (tf_ops/wire/majority.cc), for both must stop the
    same side: only the one with more than half of the members may go on; if
    both have half, the one with rank 0.

    Args:
        last: The members of the last generation, by rank.
    """
    others = other_side(last)
    if 2 * len(others) == len(last):
        return not last or not last[0].is_cut_off
    return 2 * len(others) < len(last)
