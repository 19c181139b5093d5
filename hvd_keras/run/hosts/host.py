"""The hosts of a job, as the job sees them: this one, and those with agents."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from hvd_keras._records.evidence import Part
from hvd_keras._rendezvous.stream import Stream
from hvd_keras.config import Config, read_setting
from hvd_keras.run.hosts.link import (
    OUTPUT_HEADER,
    RECORD_HEADER,
    Kind,
    Link,
    Loss,
    frame,
    read_json,
)
from hvd_keras.run.hosts.rank_records import Folder, Look, by_present_rank
from hvd_keras.run.ranks import environment
from hvd_keras.run.ranks.environment import Place
from hvd_keras.run.ranks.host_ranks import HostRanks, Watcher
from hvd_keras.run.ranks.standard_input import StandardInput
from hvd_keras.run.system.loop import Loop

_PIECE_BYTES = 128 << 10  # of a program

Ranks = Mapping[int, int] | None


@dataclasses.dataclass(frozen=True)
class Launch:
    """What all hosts must know to start their ranks."""

    command: Sequence[str]
    environ: Mapping[str, str]
    secret: bytes
    is_horovod: bool
    exported: tuple[str, ...] = ()  # more variables that other hosts get
    # Other hosts have their own environment and directory.
    keeps_surroundings: bool = False


class Host(Protocol):
    """Where ranks run."""

    name: str
    place: Place
    rendezvous: str  # where its ranks and its agent find the job's server

    def start(
        self,
        launch: Launch,
        stdin: StandardInput,
        ranks: Sequence[int] | None = None,
    ) -> None:
        """Starts the ranks of its place, or only some; None: all."""

    def signal(
        self, number: int, ranks: Iterable[int] | None, *, to_groups: bool
    ) -> None: ...

    def next_deadline(self) -> float | None: ...

    def step(self) -> None:
        """Does what is due. Call it after each step of the loop."""

    def look(self, num_samples: int, ranks: Ranks = None) -> None:
        """Begins to look at the ranks; what they left goes to the job.

        Args:
            num_samples: How often to look where each rank is.
            ranks: In an elastic job, the present rank of each member.
        """

    def is_looking(self) -> bool:
        """Whether that has not ended yet."""

    def kill(self) -> None:
        """Kills what is left of the ranks."""

    def end(self, exit_status: int) -> None:
        """Frees everything there; the job ends with that status."""

    def has_ended(self) -> bool:
        """Whether nothing is left there, as far as one knows."""


class LocalHost:
    """This host, in hvdrun or an agent. Make it before any threads exist."""

    def __init__(
        self, loop: Loop, watcher: Watcher, name: str, **options: int
    ) -> None:
        """Has no ranks yet; for the options see `HostRanks`."""
        self.name = name
        self.place = Place(0, 0, 0)
        self.rendezvous = ""
        self.ranks = HostRanks(loop, watcher, **options)
        self._folder: Folder | None = None
        self._look: Look | None = None

    def keep_records(self, folder: Folder) -> None:
        """Has the ranks leave their records in `folder`."""
        self._folder = folder
        if folder.is_private and folder.path:
            self.ranks.remove_if_killed(folder.path)

    def start(
        self,
        launch: Launch,
        stdin: StandardInput,
        ranks: Sequence[int] | None = None,
    ) -> None:
        if self.place.is_elastic:
            keeps = read_setting(launch.environ, "HVD_KEEP_STOPPED")
            self.ranks.release_ended(kills_stopped=not keeps)
        environ = launch.environ
        if self._folder is not None:
            environ = {**environ, **self._folder.variables()}
        if self.place.cross_size > 1:  # one name for it everywhere
            environ = {"HVD_HOSTNAME": self.name, **environ}
        environs = environment.of_ranks(
            environ,
            self.place,
            self.rendezvous,
            launch.secret,
            is_horovod=launch.is_horovod,
            ranks=ranks,
        )
        self.ranks.start(launch.command, environs, stdin.open_for)

    def signal(
        self, number: int, ranks: Iterable[int] | None, *, to_groups: bool
    ) -> None:
        self.ranks.signal(number, ranks, to_groups=to_groups)

    def look(self, num_samples: int, ranks: Ranks = None) -> None:
        if self._folder is not None:
            pids = by_present_rank(self.ranks.pids(), ranks)
            self._look = Look(self._folder, pids, num_samples)
            self._look.step()

    def is_looking(self) -> bool:
        return self._look is not None and not self._look.is_over

    def next_deadline(self) -> float | None:
        deadlines = [self.ranks.next_deadline()]
        if self._look is not None:
            deadlines.append(self._look.next_deadline())
        return min((d for d in deadlines if d is not None), default=None)

    def step(self) -> None:
        self.ranks.tell_exits()
        self.ranks.kill_stopped()
        if self._look is not None:
            self._look.step()

    def kill(self) -> None:
        self.ranks.kill()

    def end(self, exit_status: int) -> None:
        self.ranks.close()

    def has_ended(self) -> bool:
        return True


class AgentWatcher(Watcher, Protocol):
    """Hears of the ranks of a host, and of its agent."""

    def host_is_ready(self, host: RemoteHost) -> None: ...

    def host_failed(self, host: Host, text: str, exit_status: int) -> None: ...

    def host_is_lost(self, host: RemoteHost, loss: Loss) -> None: ...

    def host_was_signalled(self, host: RemoteHost, number: int) -> None: ...

    def host_has_checked(
        self, host: RemoteHost, answer: Mapping[str, Any]
    ) -> None: ...

    def host_sent_record(self, rank: int, part: Part, data: bytes) -> None:
        """Gets a file of a rank in pieces; b"": that was all of it."""


class RemoteHost:
    """A host whose agent starts the ranks."""

    def __init__(
        self,
        loop: Loop,
        watcher: AgentWatcher,
        name: str,
        config: Config,
        has_own_command: bool,
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
        self.num_slots: int | None = None  # None: its facts say it
        self.pid = 0  # of the agent
        self.is_lost = False  # known when the job ends
        self._loop = loop
        self._watcher = watcher
        self._config = config
        self._has_own_command = has_own_command
        self._has_started = False
        self._is_looking = False
        self._known_ranks: set[int] = set()  # whose records may come
        self._link: Link | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the agent has come; it may have gone again."""
        return self._link is not None

    def slots(self) -> int:
        """Returns how many ranks it has room for, once it is there."""
        return self.num_slots or int(self.facts["num_ranks"])

    def attach(self, stream: Stream, unsent: bytes, pid: int) -> None:
        """Takes the connection of the agent."""
        self.pid = pid
        self._link = Link(
            self._loop,
            stream,
            on_message=self._on_message,
            on_lost=lambda loss: self._watcher.host_is_lost(self, loss),
            heartbeat_seconds=self._config.heartbeat_seconds,
            timeout_seconds=self._config.heartbeat_timeout_seconds,
            unsent=unsent,
        )

    def start(
        self,
        launch: Launch,
        stdin: StandardInput,
        ranks: Sequence[int] | None = None,
    ) -> None:
        is_first = not self._has_started
        self._has_started = True
        for piece in stdin.program_pieces(_PIECE_BYTES):
            if is_first and not self._has_own_command:
                self._send(Kind.PROGRAM, piece)
        order: dict[str, Any] = {
            "place": dataclasses.asdict(self.place),
            "host": self.name,
            "ranks": list(self.place.ranks() if ranks is None else ranks),
        }
        if is_first and not self._has_own_command:
            keeps = launch.keeps_surroundings
            order["own"] = {
                "command": list(launch.command),
                "environ": environment.to_send(
                    launch.environ, launch.exported, settings_alone=keeps
                ),
                "directory": None if keeps else os.getcwd(),
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

    def look(self, num_samples: int, ranks: Ranks = None) -> None:
        self._is_looking = True
        own: list[tuple[int, int]] | None = None
        self._known_ranks = set(self.place.ranks())
        if ranks is not None:
            own = [(m, ranks[m]) for m in self.place.members if m in ranks]
            self._known_ranks = {rank for _, rank in own}
        self._send(Kind.LOOK, {"num_samples": num_samples, "ranks": own})

    def is_looking(self) -> bool:
        return self._is_looking and not self.has_ended()

    def next_deadline(self) -> float | None:
        return self._link.next_deadline() if self._link else None

    def step(self) -> None:
        if self._link is None:
            return
        self._link.check()
        if self._link.is_silent():
            seconds = self._config.heartbeat_timeout_seconds
            self._link.lose(f"it was silent for {seconds:g} s", may_run=True)

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
        if kind == Kind.RECORD:
            self._take_record(body)
            return
        told, watcher = read_json(body), self._watcher
        match kind:
            case Kind.FACTS:
                self.facts = told
                watcher.host_is_ready(self)
            case Kind.STARTED:
                watcher.rank_started(self._rank_in(told), int(told["pid"]))
            case Kind.EXITED:
                number = told["signal"]
                watcher.rank_exited(
                    self._rank_in(told),
                    int(told["exit_status"]),
                    None if number is None else int(number),
                )
            case Kind.FAILED:
                status = int(told["exit_status"])
                watcher.host_failed(self, str(told["text"]), status)
            case Kind.SIGNALLED:
                watcher.host_was_signalled(self, int(told["signal"]))
            case Kind.CHECKED:
                watcher.host_has_checked(self, told)
            case Kind.LOOKED:
                self._is_looking = False
            case _:
                raise ValueError(kind)

    def _take_output(self, body: bytes) -> None:
        rank, stream = OUTPUT_HEADER.unpack_from(body)
        if rank not in self.place.ranks() or stream not in (1, 2):
            raise ValueError(f"output of rank {rank}")
        data = body[OUTPUT_HEADER.size :]
        self._watcher.rank_wrote(rank, stream, data)
        if data:
            self._send(Kind.TAKEN, {"num_bytes": len(data)})

    def _take_record(self, body: bytes) -> None:
        rank, index = RECORD_HEADER.unpack_from(body)
        if rank not in self._known_ranks:
            raise ValueError(f"record of rank {rank}")
        part = list(Part)[index]
        self._watcher.host_sent_record(rank, part, body[RECORD_HEADER.size :])

    def _rank_in(self, message: dict[str, Any]) -> int:
        rank = int(message["rank"])
        if rank not in self.place.ranks():
            raise ValueError(f"rank {rank}")
        return rank


def refuse(stream: Stream, unsent: bytes, text: str) -> None:
    """Tells an agent why it is not wanted; the caller closes `stream` later."""
    stream.send(bytearray(unsent + frame(Kind.REFUSED, {"text": text})))
