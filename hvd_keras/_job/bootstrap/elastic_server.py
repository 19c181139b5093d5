"""The rendezvous server of an elastic job, which decides who its members are.

A member asks to join with its number. The server gives the places of the next
epoch when all members of the last one have come whose processes run and are not
leaving. Newcomers that wait at that time come in. If a member dies before all
are in, the others are told to ask again.

After a member is in, its connection stays. Over it the member hears when the
next epoch is due.
"""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from hvd_keras._job.bootstrap import roster, wire
from hvd_keras._job.bootstrap.connection import Connection
from hvd_keras._job.bootstrap.errors import JobEndedError
from hvd_keras._job.bootstrap.membership import Membership
from hvd_keras._job.bootstrap.roster import Member
from hvd_keras._job.bootstrap.server import ExchangeServer
from hvd_keras._job.bootstrap.stream import Stream
from hvd_keras._job.bootstrap.wire import FrameType, News, Role

if TYPE_CHECKING:
    import ssl

_GATHER_SECONDS = 1.0


class Observer(Protocol):
    """Hears what becomes of the members."""

    def epoch_formed(self, epoch: int, members: Sequence[Member]) -> None:
        """The members, by rank, were given their places."""

    def member_waits(self, member: Member) -> None:
        """A newcomer waits for the next epoch."""

    def members_are_awaited(self, members: Sequence[Member]) -> None:
        """The others have waited for these for a while; none: for anyone."""

    def members_are_late(self, members: Sequence[Member]) -> None:
        """The others have waited for these for too long."""


class ElasticServer(ExchangeServer):
    """Serves one elastic job. Not thread-safe.

    Attributes:
        min_size: An epoch has at least so many ranks.
        num_starting: Processes that the launcher will start soon.
        takes_newcomers: Whether they may still come in.
        why_ended: Why there is no next epoch; "": there may be one.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes,
        observer: Observer,
        on_report: Callable[[wire.Report], None],
        *,
        min_size: int,
        patience_seconds: float,
        warning_seconds: float = 0.0,
        tls: ssl.SSLContext | None = None,
        on_agent: Callable[[wire.Identity, Stream, bytes], None] | None = None,
    ) -> None:
        """Serves on `listener`, which it owns from now on.

        Args:
            listener: A socket that listens.
            secret: The secret that a member must know.
            observer: Hears of the members.
            on_report: See `ExchangeServer`; it gets the number of a member.
            min_size: See the class.
            patience_seconds: How long members of the last epoch wait for each
                other.
            warning_seconds: When the observer hears that they wait; 0: never.
            tls: See `ExchangeServer`.
            on_agent: See `ExchangeServer`.
        """
        super().__init__(
            listener, secret, 0, on_report, tls=tls, on_agent=on_agent
        )
        self.min_size = min_size
        self.num_starting = 0
        self.takes_newcomers = True
        self.why_ended = ""
        self._observer = observer
        self._patience_seconds = patience_seconds
        self._warning_seconds = warning_seconds
        self._members: dict[int, Member] = {}  # whose processes run
        self._last: list[Member] = []  # of the last epoch, by rank
        self._epoch = 0
        self._has_begun = False  # a member of the last epoch waits
        self._is_broken = False  # the last epoch has lost a member
        self._membership: Membership | None = None  # of the last epoch
        self._late_at: float | None = None  # monotonic
        self._warns_at: float | None = None
        self._short_since: float | None = None
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
            is_beside_server: Whether that is the host of this server.
        """
        self._members[number] = Member(
            number,
            host,
            slot,
            has_own_slot=slot >= 0,
            is_beside_server=is_beside_server,
        )
        self._size = len(self._members)

    def member_ended(
        self, number: int, what: str, *, fell_silent: bool = False
    ) -> None:
        """Notes that the process of a member has ended, and how.

        Args:
            number: The member.
            what: What became of it, for messages.
            fell_silent: Whether it may still run, on a host that was lost.
        """
        member = self._members.pop(number, None)
        if member is None:
            return
        self._is_broken |= member in self._last and not member.has_left
        member.has_left = not fell_silent
        member.fell_silent = fell_silent
        member.waits = False
        self._fail_without(member, what)
        self._go_on()

    def member_leaves(self, number: int, *, soon: bool) -> None:
        """Notes that a member leaves, on purpose or because it fails.

        Args:
            number: The member.
            soon: Whether it leaves only at the next change. Otherwise nobody
                waits for it any more.
        """
        member = self._members.get(number)
        if member is not None:
            member.leaves_soon |= soon
            member.has_left |= not soon
            self._go_on()

    def ask_to_leave(self, numbers: Sequence[int]) -> None:
        """Has members leave at the next change."""
        for number in numbers:
            if number in self._members:
                self._members[number].must_leave = True
        self._go_on()

    def survivors(self) -> list[Member]:
        """Returns the members of the last epoch that are still there."""
        return [m for m in self._last if m.number in self._members]

    def is_settled(self) -> bool:
        """Whether the survivors of a loss, if there are any, have come."""
        return not self._is_broken or all(m.waits for m in self._awaited())

    def present(self) -> list[Member]:
        """Returns the members that run and are not leaving."""
        return [m for m in self._members.values() if not m.has_left]

    def num_waiting(self) -> int:
        """Returns how many members wait for the next epoch."""
        return sum(member.waits for member in self._members.values())

    def short_seconds(self) -> float | None:
        """Returns how long there have been too few members; None: enough."""
        if self._short_since is None:
            return None
        return time.monotonic() - self._short_since

    def check_members(self) -> None:
        """Forms an epoch if it can; call it after a change of an attribute."""
        self._go_on()

    def end_job(self, why: str) -> None:
        """Tells members that wait, and those to come, that there is no more."""
        self.why_ended = why
        for member in self._members.values():
            if member.waits and member.connection is not None:
                self._refuse_for_ever(member.connection)

    # ---- Deadlines ----

    def next_deadline(self) -> float | None:
        """Returns the monotonic time by which `step()` must be called."""
        deadlines = [
            super().next_deadline(),
            self._late_at,
            self._warns_at,
            self._gather_until or None,
        ]
        return min((d for d in deadlines if d is not None), default=None)

    def _check_deadlines(self) -> None:
        super()._check_deadlines()
        now = time.monotonic()
        late = [m for m in self._awaited() if not m.waits]
        if self._warns_at is not None and self._warns_at <= now:
            self._warns_at = None
            self._observer.members_are_awaited(late)
        if self._late_at is not None and self._late_at <= now:
            self._late_at = None
            self._observer.members_are_late(late)
        if self._gather_until and self._gather_until <= now:
            self._gather_until = 0.0
            self._tell_news()

    def _give_up(self, membership: Membership) -> None:
        """Has those end that keep the others waiting in `init()`."""
        late = [self._last[rank] for rank in membership.missing()]
        self._fail(membership, "PeerLostError", membership.overdue())
        self._observer.members_are_late(late)

    # ---- Who comes and goes ----

    def _refusal(self, identity: wire.Identity) -> tuple[str, str] | None:
        member = self._members.get(identity.rank)
        if identity.size != 0 or member is None:
            return "LaunchError", (
                "The job must know the member. Received: number "
                f"{identity.rank} ({identity.process})."
            )
        if identity.role == Role.REPORTER:
            return None
        if identity.epoch > self._epoch:
            return "LaunchError", (
                f"Member {member.number} must come from an epoch of this "
                f"server, up to {self._epoch}. Received: {identity.process}, "
                f"which was in epoch {identity.epoch}."
            )
        if member.process not in ("", identity.process):
            return "LaunchError", (
                f"Member {member.number} is there already: {member.process}. "
                f"Received: {identity.process}. It may be a child of that "
                "process, which must not call `init()`."
            )
        return None

    def _admit(self, connection: Connection, identity: wire.Identity) -> None:
        member = self._members[identity.rank]
        before, member.connection = member.connection, connection
        if before is not None:
            self._lose(before)  # it left that epoch; maybe we did not hear it
        connection.member = member.number
        member.process = identity.process
        member.waits, member.told = True, None
        member.has_left = False
        self._flush(connection)
        if connection not in self._connections:
            return  # the other side hung up
        if self.why_ended:
            self._refuse_for_ever(connection)
            return
        if member.is_newcomer and self._last:
            self._observer.member_waits(member)
        self._go_on()

    def _refuse_for_ever(self, connection: Connection) -> None:
        self._refuse(connection, JobEndedError.__name__, self.why_ended)

    def _lose(self, connection: Connection) -> None:
        member = self._member_of(connection)
        super()._lose(connection)  # may fail the membership
        if member is not None and member.connection is connection:
            member.connection, member.waits = None, False
            self._tell_news()

    def _member_of(self, connection: Connection) -> Member | None:
        if connection.member is None:
            return None
        return self._members.get(connection.member)

    def _fail_without(self, member: Member, what: str) -> None:
        membership = self._membership
        if membership is None or member.epoch != membership.epoch:
            return
        rank = self._last.index(member)
        if membership.needs(rank):
            self._fail(membership, "PeerLostError", self._lost(rank, what))

    # ---- Epochs ----

    def _awaited(self) -> list[Member]:
        """Returns the members without whom there is no next epoch."""
        survivors = [m for m in self.survivors() if not m.has_left]
        if survivors or self.num_starting:
            return survivors  # none yet, if all were lost and are started again
        # All have gone: begin anew with all that were started again.
        return self.present()

    def _go_on(self) -> None:
        """Forms the next epoch if it can; else tells who must know."""
        awaited = self._awaited()
        is_begun = any(m.waits for m in awaited)
        if not is_begun:
            self._late_at = self._warns_at = None
        elif not self._has_begun:
            now = time.monotonic()
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
            self._short_since = None
        elif self._short_since is None:
            self._short_since = time.monotonic()
        self._tell_news()

    def _check_side(self) -> bool:
        """Whether this side of the network may go on; else ends the job."""
        if roster.may_go_on(self._last):
            return True
        silent = sum(m.fell_silent for m in self._last)
        self.end_job(
            f"{silent} of {len(self._last)} members fell silent. They may "
            "still run on the other side of the network, which has the "
            "majority; so this side must not go on."
        )
        return False

    def _form(self, chosen: list[Member]) -> None:
        self._epoch += 1
        self._late_at = self._warns_at = None
        self._has_begun = self._is_broken = False
        self._last = members = roster.ordered(chosen)
        seats = roster.seats(members)
        membership = Membership(self._epoch, len(members))
        self._membership = membership
        self._memberships = {self._epoch: membership}
        for member, seat in zip(members, seats, strict=True):
            connection = member.connection
            assert connection is not None
            assert connection.identity is not None
            member.waits, member.epoch = False, self._epoch
            connection.membership = membership
            connection.identity = dataclasses.replace(
                connection.identity, rank=seat.rank, size=seat.size
            )
            membership.admit(seat.rank, connection)
        self._observer.epoch_formed(self._epoch, members)
        for member, seat in zip(members, seats, strict=True):
            connection = member.connection
            if connection is not None and not connection.close_when_sent:
                body = wire.pack_epoch(self._epoch, seat)
                self._send(connection, wire.frame(FrameType.JOINED, body))

    def _newcomers_are_due(self) -> bool:
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
            self._gather_until = time.monotonic() + _GATHER_SECONDS
        if all(m.process for m in members):  # nobody starts
            self._gather_until = 0.0
        return not self._gather_until

    def _tell_news(self) -> None:
        newcomers = self._newcomers_are_due()
        is_due = newcomers or any(
            (m.leaves_soon or m.must_leave) and not m.has_left
            for m in self.survivors()
        )
        for member in self.survivors():
            if member.joined_epoch != self._epoch or member.waits:
                continue
            news = News.CHANGE_DUE if is_due else News(0)
            if member.must_leave:
                news |= News.MUST_LEAVE
            if (
                news != (member.told or News(0))
                and member.connection is not None
            ):
                member.told = news
                body = bytes([news])
                self._send(member.connection, wire.frame(FrameType.NEWS, body))

    # ---- Messages ----

    def _handle_frame(self, connection: Connection, message: bytes) -> None:
        member = self._member_of(connection)
        kind, _ = wire.frame_header(message[: wire.FRAME_HEADER_BYTES])
        if connection.member is None:
            super()._handle_frame(connection, message)  # a report
        elif member is None or member.waits or connection.membership is None:
            self._lose(connection)  # it has nothing to say now
        else:
            super()._handle_frame(connection, message)
            if kind == FrameType.GOODBYE and connection.identity is not None:
                member.joined_epoch = member.epoch
                member.first_epoch = member.first_epoch or member.epoch
                member.rank = connection.identity.rank
                self._tell_news()
