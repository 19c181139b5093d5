"""Who is in an elastic job, whose members may end, leave and come.

A member asks to join with its number. It gets its place in the next generation
when all members of the last one have come whose processes run and are not
leaving.
Newcomers that wait at that time come in. If a member dies before all are in,
the others are told to ask again.

After a member is in, its connection stays. Over it the member hears when the
next generation is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hvd_keras._rendezvous import protocol, roster
from hvd_keras._rendezvous.errors import JobEndedError
from hvd_keras._rendezvous.generation import Generation, Peer
from hvd_keras._rendezvous.protocol import FrameType, Identity, News, Role
from hvd_keras._rendezvous.roster import Member, State, Stay

_GATHER_SECONDS = 1.0


class Observer(Protocol):
    """Hears what becomes of the members."""

    def formed(self, generation: int, members: Sequence[Member]) -> None:
        """The members, by rank, were given their places."""

    def member_waits(self, member: Member) -> None:
        """A newcomer waits for the next generation."""

    def members_are_awaited(self, members: Sequence[Member]) -> None:
        """The others have waited for these for a while; none: for anyone."""

    def members_are_late(self, members: Sequence[Member]) -> None:
        """The others have waited for these for too long."""


class ElasticGenerations:
    """See `Generations`. Its owner says which processes start, leave and end.

    Attributes:
        min_size: A generation has at least so many ranks.
        num_starting: Processes that the launcher will start soon.
        takes_newcomers: Whether they may still come in.
        why_ended: Why there is no next generation; "": there may be one.
        short_since: Since when there are too few members; None: there are not.
    """

    def __init__(
        self,
        observer: Observer,
        *,
        min_size: int,
        patience_seconds: float,
        warning_seconds: float = 0.0,
    ) -> None:
        """Knows of no member.

        Members wait `patience_seconds` for each other. After `warning_seconds`
        the observer hears that they wait; 0: never.
        """
        self.min_size = min_size
        self.num_starting = 0
        self.takes_newcomers = True
        self.why_ended = ""
        self.short_since: float | None = None
        self._observer = observer
        self._patience_seconds = patience_seconds
        self._warning_seconds = warning_seconds
        self._members: dict[int, Member] = {}  # whose processes run
        self._last: list[Member] = []  # of the last generation, by rank
        self._generation = Generation(0, 0)  # of the last generation
        self._has_begun = False  # a member of the last generation waits
        self._is_broken = False  # the last generation has lost a member
        self._late_at: float | None = None
        self._warns_at: float | None = None
        # Until when newcomers wait for others that start; 0: no longer.
        self._gather_until: float | None = None

    # ---- For the launcher ----

    def member_started(
        self,
        number: int,
        host: str,
        slot: int = -1,
        *,
        is_beside_server: bool = True,
    ) -> None:
        """Notes that a process was started.

        Args:
            number: Its number.
            host: Its host.
            slot: The slot there that it was told; -1: none.
            is_beside_server: Whether that is the host of the server.
        """
        self._members[number] = Member(
            number, host, slot, slot >= 0, is_beside_server
        )
        if not self.survivors():  # it is awaited, and has as long as others
            self._has_begun = False

    def host_fell_silent(self, numbers: Sequence[int]) -> None:
        """Notes that a host was lost whose processes may still run.

        Args:
            numbers: All members that were started there, also those that have
                ended. The others end next.
        """
        for member in (*self._members.values(), *self._last):
            member.is_cut_off |= member.number in numbers

    def member_ended(self, number: int, what: str, now: float) -> None:
        """Notes that the process of a member has ended or was lost, and how.

        Args:
            number: The member.
            what: What became of it, for messages.
            now: The time.
        """
        member = self._members.pop(number, None)
        if member is None:
            return
        self._is_broken |= member in self._last and member.is_present
        member.state = State.SILENT if member.is_cut_off else State.ENDED
        if self._last and member.generation == self.last():
            self._generation.fail_without(self._last.index(member), what)
        self.go_on(now)

    def member_leaves(self, number: int, now: float, *, soon: bool) -> None:
        """Notes that a member leaves, on purpose or because it fails.

        Args:
            number: The member.
            now: The time.
            soon: Whether it leaves only at the next change. Otherwise nobody
                waits for it any more.
        """
        member = self._members.get(number)
        if member is None:
            return
        if soon:
            member.stay = max(member.stay, Stay.UNTIL_A_CHANGE)
        else:
            member.state = State.LEAVING
        self.go_on(now)

    def ask_to_leave(self, numbers: Sequence[int], now: float) -> None:
        """Has members leave at the next change."""
        for number in numbers:
            if number in self._members:
                self._members[number].stay = Stay.MUST_LEAVE
        self.go_on(now)

    def survivors(self) -> list[Member]:
        """Returns the members of the last generation that are present."""
        return [member for member in self._last if member.is_present]

    def is_settled(self) -> bool:
        """Whether the survivors of a loss, if there are any, have come."""
        return not self._is_broken or all(m.waits for m in self._awaited())

    def present(self) -> list[Member]:
        """Returns the members that run and are not leaving."""
        return [m for m in self._members.values() if m.is_present]

    def num_waiting(self) -> int:
        """Returns how many members wait for the next generation."""
        return sum(member.waits for member in self._members.values())

    def end_job(self, why: str) -> None:
        """Tells members that wait, and those to come, that there is no more."""
        self.why_ended = why
        for member in self._members.values():
            if member.waits and member.peer is not None:
                member.peer.refuse(JobEndedError.__name__, why)

    def last(self) -> int:
        return self._generation.number

    # ---- For the server ----

    @property
    def size(self) -> int:
        return len(self._members)

    def refusal(self, identity: Identity) -> tuple[str, str] | None:
        member = self._members.get(identity.rank)
        if identity.size != 0 or member is None:
            return "LaunchError", (
                "The job must know the member. Received: number "
                f"{identity.rank} ({identity.process})."
            )
        if identity.role == Role.REPORTER:
            return None
        if identity.generation > self.last():
            return "LaunchError", (
                f"Member {member.number} must come from a generation of this "
                f"server, up to {self.last()}. Received: "
                f"{identity.process}, which was in generation "
                f"{identity.generation}."
            )
        if member.process not in ("", identity.process):
            return "LaunchError", (
                f"Member {member.number} is there already: {member.process}. "
                f"Received: {identity.process}. It may be a child of that "
                "process, which must not call `init()`."
            )
        return None

    def joined(self, peer: Peer, now: float) -> None:
        member = self._members[peer.identity.rank]
        before, member.peer = member.peer, peer
        if before is not None:
            # It left that generation; maybe we did not hear it.
            self.lost(before, now)
            before.hang_up()
        member.process = peer.identity.process
        member.state, member.told = State.WAITING, News.NOTHING
        if self.why_ended:
            peer.refuse(JobEndedError.__name__, self.why_ended)
            return
        if member.is_newcomer and self._last:
            self._observer.member_waits(member)
        self.go_on(now)

    def said(self, peer: Peer, kind: int, body: bytes, now: float) -> bool:
        member = self._members.get(peer.identity.rank)
        if member is None or member.waits or peer.generation is None:
            return False  # it has nothing to say now
        if not peer.generation.said(peer, kind, body, now):
            return False
        if kind == FrameType.GOODBYE:
            member.joined = member.generation
            member.first = member.first or member.generation
            member.rank = peer.rank
            self._tell_news(now)
        return True

    def lost(self, peer: Peer, now: float) -> None:
        if peer.generation is not None:
            peer.generation.lost(peer)
        member = self._members.get(peer.identity.rank)
        if member is not None and member.peer is peer:
            member.peer = None
            if member.is_present:
                member.state = State.AWAY
            self._tell_news(now)

    def deadlines(self) -> list[float]:
        own = (self._late_at, self._warns_at, self._gather_until or None)
        found = [deadline for deadline in own if deadline is not None]
        return [*found, *self._generation.deadlines()]

    def step(self, now: float) -> None:
        # Those end that keep the others waiting in `init()`.
        if ranks := self._generation.step(now, "PeerLostError"):
            self._observer.members_are_late([self._last[r] for r in ranks])
        late = [m for m in self._awaited() if not m.waits]
        if self._warns_at is not None and self._warns_at <= now:
            self._warns_at = None
            self._observer.members_are_awaited(late)
        if self._late_at is not None and self._late_at <= now:
            self._late_at = None
            self._observer.members_are_late(late)
        if self._gather_until and self._gather_until <= now:
            self._gather_until = 0.0
            self._tell_news(now)

    # ---- Generations ----

    def _awaited(self) -> list[Member]:
        """Returns the members without whom there is no next generation."""
        survivors = self.survivors()
        if survivors or self.num_starting:
            return survivors  # none yet, if all were lost and are started again
        # All have gone: begin anew with all that were started again. Who has
        # never been in begins nothing when others have finished.
        return [
            member
            for member in self.present()
            if self.takes_newcomers or not member.is_newcomer
        ]

    def go_on(self, now: float) -> None:
        """Forms the next generation if it can; else tells who must know.

        Call it after a change of an attribute.
        """
        awaited = self._awaited()
        is_begun = any(m.waits for m in awaited)
        if not is_begun:
            self._late_at = self._warns_at = None
        elif not self._has_begun:
            self._late_at = now + self._patience_seconds
            if self._warning_seconds:
                self._warns_at = now + self._warning_seconds
        self._has_begun = is_begun
        is_short = len(self.present()) < self.min_size
        if awaited and all(m.waits for m in awaited) and not self.why_ended:
            chosen = [
                m
                for m in self._members.values()
                if m.waits and (m in awaited or self.takes_newcomers)
            ]
            if len(chosen) < self.min_size:
                is_short = True
            elif self._check_side():
                self._form(chosen)
        if not is_short:
            self.short_since = None
        elif self.short_since is None:
            self.short_since = now
        self._tell_news(now)

    def _check_side(self) -> bool:
        """Whether this side of the network may go on; else ends the job."""
        if roster.may_go_on(self._last):
            return True
        silent = roster.other_side(self._last)
        self.end_job(
            f"{len(silent)} of {len(self._last)} members fell silent. They may "
            "still run on the other side of the network, which has the "
            "majority; so this side must not go on."
        )
        return False

    def _form(self, chosen: list[Member]) -> None:
        generation = self.last() + 1
        self._late_at = self._warns_at = None
        self._has_begun = self._is_broken = False
        self._last = members = roster.ordered(chosen)
        self._generation = Generation(generation, len(members))
        for member, seat in zip(members, roster.seats(members), strict=True):
            assert member.peer is not None
            member.state, member.generation = State.IN, generation
            member.peer.rank = seat.rank
            self._generation.admit(member.peer)
            member.peer.send(
                FrameType.JOINED, protocol.pack_generation(generation, seat)
            )
        self._observer.formed(generation, members)

    def _newcomers_are_due(self, now: float) -> bool:
        """Whether newcomers shall come in now.

        Each change costs those that train a pause. So a newcomer waits a moment
        for others that start.
        """
        members = self._members.values()
        if not (
            self.takes_newcomers
            and any(m.waits and m.is_newcomer for m in members)
        ):
            self._gather_until = None
            return False
        if self._gather_until is None:
            self._gather_until = now + _GATHER_SECONDS
        if all(m.process for m in members):  # nobody starts
            self._gather_until = 0.0
        return not self._gather_until

    def _tell_news(self, now: float) -> None:
        newcomers = self._newcomers_are_due(now)
        survivors = self.survivors()
        is_due = newcomers or any(member.stay for member in survivors)
        for member in survivors:
            if member.joined != self.last() or member.waits:
                continue
            news = News.CHANGE_DUE if is_due else News.NOTHING
            if member.stay == Stay.MUST_LEAVE:
                news |= News.MUST_LEAVE
            if news != member.told and member.peer is not None:
                member.told = news
                member.peer.send(FrameType.NEWS, bytes([news]))
