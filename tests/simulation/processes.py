"""Processes of a simulated job, and their connections to the server."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from virtual_members import HEADER, heard

from hvd_keras._rendezvous import protocol
from hvd_keras._rendezvous.generation import Peer
from hvd_keras._rendezvous.protocol import (
    FrameType,
    Identity,
    News,
    Report,
    ReportKind,
    Role,
)
from simulation.hosts import Agent, Pipe

if TYPE_CHECKING:
    from simulation.groups import Group
    from simulation.job import Job

_HUNG_SECONDS = 500.0  # then the user has had enough
_TELL_SECONDS = 1.0  # that a process waits until hvdrun has taken a report
_PEER_LOST = "PeerLostError: A peer was lost."


class Connection:
    """One connection of a process to the rendezvous server."""

    def __init__(self, job: Job, process: Process) -> None:
        self.process = process
        self.peer: Peer | None = None  # None: it has not come to the server
        self.is_open = True  # as the server sees it
        self.began_at = job.clock.now
        self._to_server = Pipe(job, process.agent.host)
        self.to_process = Pipe(job, process.agent.host)
        self._job = job

    def join(self, identity: Identity) -> None:
        """Asks to join."""
        self._to_server.carry(self._joined, identity)

    def _joined(self, identity: Identity) -> None:
        generations = self._job.policy.generations
        self._job.is_touched = True
        self.peer = peer = Peer(identity, bytearray())
        self._job.connections.append(self)
        refusal = generations.refusal(identity)
        if refusal is not None:
            peer.refuse(*refusal)
        else:
            generations.joined(peer, self._job.clock.now)

    def say(self, kind: FrameType, body: bytes = b"") -> None:
        """Sends a frame to the server."""
        self._to_server.carry(self._said, kind, body)

    def _said(self, kind: FrameType, body: bytes) -> None:
        if not self.is_open or self.peer is None or self.peer.closes:
            return
        self._job.is_touched = True
        if not self._job.policy.generations.said(
            self.peer, kind, body, self._job.clock.now
        ):
            self._lost()

    def close(self) -> None:
        """Hangs up at the end of the process."""
        self._to_server.carry(self._lost)

    def _lost(self) -> None:
        if self.is_open and self.peer is not None:
            self.is_open = False
            self._job.is_touched = True
            self._job.connections.remove(self)
            self._job.policy.generations.lost(self.peer, self._job.clock.now)

    def flush(self) -> None:
        """Sends what the process must hear."""
        assert self.peer is not None
        if self.peer.unsent:
            frames = heard(self.peer)
            self.to_process.carry(self.process.hears, self, frames)
        if self.peer.closes:
            self.to_process.carry(self.process.hears_end, self)
            self.is_open = False
            self._job.connections.remove(self)


class Telling:
    """A process that waits until hvdrun has taken what it told; not long."""

    def __init__(self, process: Process, then: Any) -> None:
        self._process = process
        self._then = then

    def taken(self) -> None:
        """Hvdrun has taken it."""
        job = self._process._job
        pipe = Pipe(job, self._process.agent.host)
        pipe.carry(self._process.later, 0.0, self.end)

    def end(self) -> None:
        """Goes on."""
        then, self._then = self._then, None
        if then is not None:
            then()


class Process:
    """A rank; in an elastic job a member.

    Attributes:
        done: How many rows its last commit has; None: it has no state.
        is_stuck: Whether it does nothing any more.
    """

    def __init__(self, job: Job, number: int, agent: Agent) -> None:
        self.number = number
        self.agent = agent
        self.is_alive = True
        self.is_stuck = False
        self.is_late = False  # it comes perhaps too late
        self.is_leaving = False  # it was told to, or fails
        self.has_finished = False
        self.generation = 0
        self.num_generations = 0  # that were complete for it
        self.group: Group | None = None  # that it trains in
        self.done: int | None = None
        self.waits_since: float | None = None
        self._news = News.NOTHING
        self._joins: Group | None = None  # that it is just joining
        self._round = 0
        self._ends = False
        self._job = job
        self._connection: Connection | None = None
        job.processes[number] = self
        agent.tell(job.rank_started, number)
        after, how = job.adversary.start_of(self)
        if self.is_late:
            job.judge.blamed(number)
        job.after(after, self._begin, how)

    def acts(self) -> bool:
        """Whether it does something."""
        return self.is_alive and not self.is_stuck

    def later(
        self, seconds: float, call: Callable[..., Any], *given: Any
    ) -> None:
        """Calls a function after a while, if the process still acts."""
        self._job.after(seconds, self._if_acts, call, given)

    def _if_acts(self, call: Callable[..., Any], given: Any) -> None:
        if self.acts():
            call(*given)

    def _begin(self, how: str) -> None:
        if not self.acts():
            return
        if how == "crash":
            self._job.judge.blamed(self.number)
            self.end(1)
        elif how == "stuck":
            self.stop()
            self._job.after(_HUNG_SECONDS, self.end, 0, signal.SIGKILL)
        else:
            if self._job.is_elastic:
                self.tell(ReportKind.ELASTIC)
            self.join()

    def stop(self) -> None:
        """Does nothing from now on."""
        self._job.judge.blamed(self.number)
        self.is_stuck = True
        if self.group is not None:
            self.group.pause()

    # ---- The server ----

    def join(self) -> None:
        """Asks for a place in the next generation."""
        if self._ends:
            return
        self._hang_up()
        job = self._job
        if job.is_elastic:
            place = (self.number, 0)
        else:
            place = (self.number, len(job.policy.ranks))
        identity = Identity(
            Role.MEMBER,
            *place,
            self.generation,
            1000 + self.number,
            host=self.agent.host.name,
        )
        self._joins, self.group, self._news = None, None, News.NOTHING
        self._round = 0
        if self.waits_since is None:
            self.waits_since = job.clock.now
        self._connection = Connection(job, self)
        self._connection.join(identity)

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def lose_connection(self) -> None:
        """Notices that the connection has ended; it needs one to come in."""
        if self._connection is None:
            return
        self._job.trace(f"rank {self.number} loses its connection")
        self._hang_up()
        if self.group is None:
            if self._joins is not None:
                self._joins.lose(self)
            self.later(self._job.pause(), self.join)

    def hears_end(self, connection: Connection) -> None:
        """Notices that the server has hung up."""
        if self.acts() and connection is self._connection:
            self.lose_connection()

    def hears(
        self, connection: Connection, frames: list[tuple[FrameType, bytes]]
    ) -> None:
        """Reads frames of the server."""
        for kind, body in frames:
            if not self.acts() or connection is not self._connection:
                return
            if kind in (FrameType.JOINED, FrameType.ERROR):
                self._job.judge.was_answered(self, connection.began_at)
                connection.began_at = self._job.clock.now
            if kind == FrameType.JOINED:
                self._joined(body)
            elif kind == FrameType.RESULT:
                self._round += 1
                self.later(self._job.pause(), self._exchange, connection)
            elif kind == FrameType.ERROR:
                self._refused(protocol.read_text(body))
            elif kind == FrameType.NEWS:
                self._news = News(body[0])
                if self._news and self.group is not None:
                    self.group.change()

    def _joined(self, body: bytes) -> None:
        self.generation = protocol.unpack_generation(body)
        seat = protocol.unpack_seat(body)
        rank = self.number if seat is None else seat.rank
        size = len(self._job.policy.ranks) if seat is None else seat.size
        self._joins = self._job.group(self.generation, size)
        self._joins.members[rank] = self
        self.later(self._job.pause(), self._exchange, self._connection)

    def _exchange(self, connection: Connection) -> None:
        if connection is not self._connection or self._joins is None:
            return
        size = self._joins.size
        if self._round < self._job.adversary.num_rounds and size > 1:
            patience = int(self._job.config.start_timeout_seconds * 1e3)
            header = HEADER.pack(self._round, patience, 0)
            connection.say(FrameType.EXCHANGE, header)
            return
        connection.say(FrameType.GOODBYE)
        if not self._job.is_elastic:
            self._hang_up()
        self.group, self._joins = self._joins, None
        self.waits_since = None
        self.group.came(self)

    def _refused(self, text: str) -> None:
        name, _, message = text.partition("\n")
        self._connection = None
        if self._joins is not None:
            self._joins.lose(self)  # others may be in, and hear of it
            self._joins = None
        if self._job.is_elastic and name == "PeerLostError":
            self.later(self._job.pause(), self.join)
        else:
            self.fail(f"{name}: {message}")

    def tell(
        self, kind: ReportKind, text: str = "", then: Any = None, rank: int = -1
    ) -> None:
        """Tells hvdrun something over a connection of its own."""
        told = Report(kind, self.number if rank < 0 else rank, text)
        telling = Telling(self, then)
        pipe = Pipe(self._job, self.agent.host)
        pipe.carry(self._job.report, self, told, telling.taken)
        self.later(_TELL_SECONDS, telling.end)

    # ---- What the group says ----

    def lost_peer(self, group: Group) -> None:
        """A collective has failed, for a peer was lost."""
        if not self.acts() or self.group is not group or self.has_finished:
            return
        self.group = None
        if self._job.is_elastic:
            self.waits_since = self._job.clock.now
            self.later(self._job.pause(), self.join)
        else:
            self.fail(_PEER_LOST)

    def must_leave(self) -> bool:
        """Whether it leaves at the next change."""
        return self.is_leaving or News.MUST_LEAVE in self._news

    def hears_of_change(self) -> bool:
        """Whether the members should form the next generation soon."""
        return self.is_leaving or bool(self._news)

    def change(self) -> None:
        """Leaves the generation, whose members have all committed."""
        if not self.acts():
            return
        if self.must_leave():
            self._hang_up()
            self._ends = True
            self.group, self.is_leaving = None, True
            self.tell(ReportKind.LEAVES, "it must", lambda: self._exit_later(0))
        else:
            self.waits_since = self._job.clock.now
            self.join()

    # ---- The end ----

    def signalled(self, number: int) -> None:
        """Gets a signal."""
        if number in (signal.SIGCONT, signal.SIGUSR2):
            return
        if number == signal.SIGKILL:
            self.end(killed_by=number)
        elif self.is_stuck or (self.is_leaving and self._job.chance(0.3)):
            pass  # it does not hear, or takes its time
        elif number == signal.SIGINT:
            self.fail("KeyboardInterrupt: ")
        elif self._job.is_elastic and self.group is not None:
            self.leave_soon()
        else:
            self.end(killed_by=number)

    def leave_soon(self) -> None:
        """Leaves at the next change, as its scheduler has asked."""
        if not self.is_leaving:
            self.is_leaving = True
            self.tell(ReportKind.LEAVES_SOON)

    def fail(self, text: str) -> None:
        """Ends with an error, perhaps slowly."""
        for group in (self.group, self._joins):
            if group is not None and not self.has_finished:
                group.lose(self)
        self._hang_up()
        self._ends = True
        self.group, self._joins, self.is_leaving = None, None, True
        self.tell(ReportKind.FAILS, text, lambda: self._exit_later(1))

    def finish(self) -> None:
        """Ends, for it has done all."""
        self.has_finished = self._ends = True
        self._exit_later(0)

    def _exit_later(self, status: int) -> None:
        self.later(self._job.adversary.exit_delay(self), self.end, status)

    def end(self, status: int = 0, killed_by: int = 0) -> None:
        """Ends the process."""
        if not self.is_alive:
            return
        self.is_alive = False
        self._hang_up()
        self.agent.tell(self._job.rank_exited, self.number, status, killed_by)
        for group in (self.group, self._joins):
            if group is not None and not self.has_finished:
                group.lose(self)
