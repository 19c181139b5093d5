"""The hosts of a job, as the job sees them: this one, and those with agents."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from hvd_keras._job.bootstrap.stream import Stream
from hvd_keras.config import Config
from hvd_keras.run import environment
from hvd_keras.run.environment import Place
from hvd_keras.run.host_ranks import HostRanks, Watcher
from hvd_keras.run.link import OUTPUT_HEADER, Kind, Link, frame, read_json
from hvd_keras.run.loop import Loop
from hvd_keras.run.standard_input import StandardInput

_PIECE_BYTES = 128 << 10  # of a program


@dataclasses.dataclass(frozen=True)
class Launch:
    """What all hosts must know to start their ranks."""

    command: Sequence[str]
    environ: Mapping[str, str]
    secret: bytes
    is_horovod: bool
    exported: tuple[str, ...] = ()  # more variables that other hosts get


class Host(Protocol):
    """Where ranks run."""

    name: str
    place: Place
    rendezvous: str  # where its ranks and its agent find the job's server

    def start(self, launch: Launch, stdin: StandardInput) -> None: ...

    def signal(
        self, number: int, ranks: Iterable[int] | None, *, to_groups: bool
    ) -> None: ...

    def next_deadline(self) -> float | None: ...

    def step(self) -> None:
        """Does what is due. Call it after each step of the loop."""

    def kill(self) -> None:
        """Kills what is left of the ranks."""

    def end(self, exit_status: int) -> None:
        """Frees everything there; the job ends with that status."""

    def has_ended(self) -> bool:
        """Whether nothing is left there, as far as one knows."""


class LocalHost:
    """This host. Make it before any threads exist."""

    def __init__(self, loop: Loop, watcher: Watcher, name: str) -> None:
        self.name = name
        self.place = Place(0, 0, 0)
        self.rendezvous = ""
        self._ranks = HostRanks(loop, watcher)

    def start(self, launch: Launch, stdin: StandardInput) -> None:
        environ = launch.environ
        if self.place.cross_size > 1:  # one name for it everywhere
            environ = {"HVD_HOSTNAME": self.name, **environ}
        environs = environment.of_ranks(
            environ,
            self.place,
            self.rendezvous,
            launch.secret,
            is_horovod=launch.is_horovod,
        )
        self._ranks.start(launch.command, environs, stdin.open_for)

    def signal(
        self, number: int, ranks: Iterable[int] | None, *, to_groups: bool
    ) -> None:
        self._ranks.signal(number, ranks, to_groups=to_groups)

    def next_deadline(self) -> float | None:
        return None

    def step(self) -> None:
        self._ranks.tell_exits()

    def kill(self) -> None:
        self._ranks.kill()

    def end(self, exit_status: int) -> None:
        self._ranks.close()

    def has_ended(self) -> bool:
        return True


class AgentWatcher(Watcher, Protocol):
    """Hears of the ranks of a host, and of its agent."""

    def host_is_ready(self, host: RemoteHost) -> None: ...

    def host_failed(
        self, host: RemoteHost, text: str, exit_status: int
    ) -> None: ...

    def host_is_lost(self, host: RemoteHost, reason: str) -> None: ...

    def host_was_signalled(self, number: int) -> None: ...

    def host_has_checked(
        self, host: RemoteHost, answer: Mapping[str, Any]
    ) -> None: ...


class RemoteHost:
    """A host whose agent starts the ranks."""

    def __init__(
        self,
        loop: Loop,
        watcher: AgentWatcher,
        name: str,
        config: Config,
        *,
        has_own_command: bool = False,
    ) -> None:
        """Knows of a host whose agent has not come yet.

        Args:
            loop: Calls when the agent says something.
            watcher: Hears what that is.
            name: The name of the host.
            config: The settings of the job.
            has_own_command: Whether somebody has given the agent command and
                environment.
        """
        self.name = name
        self.place = Place(0, 0, 0)
        self.rendezvous = ""
        self.facts: dict[str, Any] = {}
        self.pid = 0  # of the agent
        self.is_lost = False  # known when the job ends
        self._loop = loop
        self._watcher = watcher
        self._config = config
        self._has_own_command = has_own_command
        self._link: Link | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the agent has come; it may have gone again."""
        return self._link is not None

    def attach(self, stream: Stream, unsent: bytes, pid: int) -> None:
        """Takes the connection of the agent."""
        self.pid = pid
        self._link = Link(
            self._loop,
            stream,
            on_message=self._on_message,
            on_lost=lambda reason: self._watcher.host_is_lost(self, reason),
            heartbeat_seconds=self._config.heartbeat_seconds,
            timeout_seconds=self._config.heartbeat_timeout_seconds,
            unsent=unsent,
        )

    def start(self, launch: Launch, stdin: StandardInput) -> None:
        for piece in stdin.program_pieces(_PIECE_BYTES):
            if not self._has_own_command:
                self._send(Kind.PROGRAM, piece)
        order: dict[str, Any] = {
            "place": dataclasses.asdict(self.place),
            "host": self.name,
        }
        if not self._has_own_command:
            order["own"] = {
                "command": list(launch.command),
                "environ": environment.to_send(launch.environ, launch.exported),
                "directory": os.getcwd(),
                "is_horovod": launch.is_horovod,
            }
        self._send(Kind.START, order)

    def signal(
        self, number: int, ranks: Iterable[int] | None, *, to_groups: bool
    ) -> None:
        chosen = None if ranks is None else list(ranks)
        body = {"signal": number, "ranks": chosen, "to_groups": to_groups}
        self._send(Kind.SIGNAL, body)

    def check(self, order: Mapping[str, Any]) -> None:
        """Has the agent look at its host; see `probe`."""
        self._send(Kind.CHECK, order)

    def next_deadline(self) -> float | None:
        return self._link.next_deadline() if self._link else None

    def step(self) -> None:
        if self._link is None:
            return
        self._link.check()
        if self._link.is_silent():
            seconds = self._config.heartbeat_timeout_seconds
            self._link.lose(f"it was silent for {seconds:g} s")

    def kill(self) -> None:
        self._send(Kind.KILL)

    def end(self, exit_status: int) -> None:
        self.is_lost = self.has_ended()
        self._send(Kind.END, {"exit_status": exit_status})

    def has_ended(self) -> bool:
        return self._link is None or not self._link.is_open

    def close(self) -> None:
        """Hangs up."""
        if self._link is not None:
            self._link.close()

    def _send(self, kind: Kind, body: bytes | Mapping[str, Any] = b"") -> None:
        if self._link is not None:
            self._link.send(kind, body)

    def _on_message(self, kind: Kind, body: bytes) -> None:
        if kind == Kind.OUTPUT:
            self._take_output(body)
            return
        known: dict[Kind, Callable[[dict[str, Any]], None]] = {
            Kind.FACTS: self._on_facts,
            Kind.STARTED: self._on_started,
            Kind.EXITED: self._on_exited,
            Kind.FAILED: self._on_failed,
            Kind.SIGNALLED: self._on_signalled,
            Kind.CHECKED: lambda m: self._watcher.host_has_checked(self, m),
        }
        known[kind](read_json(body))

    def _take_output(self, body: bytes) -> None:
        rank, stream = OUTPUT_HEADER.unpack_from(body)
        if rank not in self.place.ranks() or stream not in (1, 2):
            raise ValueError(f"output of rank {rank}")
        data = body[OUTPUT_HEADER.size :]
        self._watcher.rank_wrote(rank, stream, data)
        if data:
            self._send(Kind.TAKEN, {"num_bytes": len(data)})

    def _on_facts(self, message: dict[str, Any]) -> None:
        self.facts = message
        self._watcher.host_is_ready(self)

    def _on_started(self, message: dict[str, Any]) -> None:
        rank = self._own_rank(message)
        self._watcher.rank_started(rank, int(message["pid"]))

    def _on_exited(self, message: dict[str, Any]) -> None:
        rank, killed_by = self._own_rank(message), message["signal"]
        self._watcher.rank_exited(
            rank,
            int(message["exit_status"]),
            None if killed_by is None else int(killed_by),
        )

    def _on_failed(self, message: dict[str, Any]) -> None:
        text, exit_status = str(message["text"]), int(message["exit_status"])
        self._watcher.host_failed(self, text, exit_status)

    def _on_signalled(self, message: dict[str, Any]) -> None:
        self._watcher.host_was_signalled(int(message["signal"]))

    def _own_rank(self, message: dict[str, Any]) -> int:
        rank = int(message["rank"])
        if rank not in self.place.ranks():
            raise ValueError(f"rank {rank}")
        return rank


def refuse(stream: Stream, unsent: bytes, text: str) -> None:
    """Tells an agent why it is not wanted; the caller closes `stream` later."""
    stream.send(bytearray(unsent + frame(Kind.REFUSED, {"text": text})))
