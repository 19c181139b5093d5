"""The agent of a host: starts its ranks for a job that runs elsewhere.

`python -m hvd_keras.run.hosts.agent` reads its configuration, one line of JSON,
from the standard input. So the secret of the job is seen neither in a list of
processes nor in an environment. The agent connects to the job and does what it
says. When it loses the job, it soon kills its ranks and ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

from hvd_keras._common.terminal import tell
from hvd_keras._common.version import package_version
from hvd_keras._records.evidence import Part
from hvd_keras._rendezvous import addresses, interfaces, secret, tls
from hvd_keras._rendezvous.client import Rendezvous
from hvd_keras._rendezvous.protocol import Identity, Role
from hvd_keras._rendezvous.stream import Stream
from hvd_keras.config import Config
from hvd_keras.exceptions import HvdError
from hvd_keras.run.hosts import probe
from hvd_keras.run.hosts.host import Launch, LocalHost
from hvd_keras.run.hosts.link import (
    OUTPUT_HEADER,
    OUTPUT_WINDOW_BYTES,
    RECORD_HEADER,
    Kind,
    Link,
    Loss,
    read_json,
)
from hvd_keras.run.hosts.planning import check_command
from hvd_keras.run.hosts.probe import SpeedServer
from hvd_keras.run.hosts.rank_records import Folder, packed
from hvd_keras.run.ranks import environment
from hvd_keras.run.ranks.environment import Place
from hvd_keras.run.ranks.process import die_with
from hvd_keras.run.ranks.standard_input import StandardInput
from hvd_keras.run.system.file_limit import file_limit_named, raise_file_limit
from hvd_keras.run.system.loop import Loop
from hvd_keras.run.system.signals import SIGNALS, Wakeup
from hvd_keras.run.usage import UsageError

_READ_BYTES = 8 << 10
_PIECE_BYTES = 128 << 10  # of a rank's record
# For the ranks, once the job is lost.
_LAST_SECONDS = 1.0


class Agent:
    """One host of a job. Make it before any threads exist."""

    def __init__(
        self,
        config: Config,
        index: int,
        num_hosts: int,
        own: Launch | None = None,
        num_ranks: int | None = None,
    ) -> None:
        """Connects to the job.

        Args:
            config: Says where the job is, and holds its secret.
            index: The index of this host in the job.
            num_hosts: Number of hosts in the job.
            own: What to start; None: the job says it.
            num_ranks: How many ranks this host has room for, if it says that.

        Raises:
            HvdError: The job is not there, or refuses this process.
        """
        self._loop = Loop()
        self._own = own
        self._told: dict[str, Any] = {}  # by the job, in place of `own`
        self._program: int | None = None  # a descriptor
        self._exit_status: int | None = None  # the job has ended
        self._error = ""  # why this agent ends
        self._host = LocalHost(self._loop, self, "", read_bytes=_READ_BYTES)
        self._stdin: StandardInput | None = None
        self._looked_at: Sequence[int] = ()
        self._folder: Folder | None = None  # None: no rank was started
        self._is_looking = False  # the job waits for what it finds
        self._untaken_bytes = 0
        self._signals: list[int] = []  # which the job does not know yet
        self._is_connected = False
        self._secret = secret.require(config)
        self._host.rendezvous = addresses.parse(config.rendezvous or "")
        self._wakeup = Wakeup(self._loop)
        # Before anything can take long: it may be told to end.
        for number in SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup
                signal.signal(number, self._pass_on)
        stream = self._connect(config, index, num_hosts)
        self._is_connected = True
        self._link = Link(
            self._loop,
            stream,
            on_message=self._on_message,
            on_lost=self._on_lost,
            heartbeat_seconds=config.heartbeat_seconds,
            timeout_seconds=config.heartbeat_timeout_seconds,
        )
        facts = {
            "version": package_version(),
            "num_cores": environment.num_cores(),
            "num_ranks": num_ranks,
        }
        self._link.send(Kind.FACTS, facts)

    def run(self) -> int:
        """Works for the job until it ends.

        Returns:
            The exit status of the job; 1 if it was lost.
        """
        try:
            while self._exit_status is None and not self._error:
                self._loop.step(self._time_left())
                self._host.step()
                signals, self._signals = self._signals, []
                for number in signals:
                    self._link.send(Kind.SIGNALLED, {"signal": number})
                self._pause()
                self._tell_records()
                self._link.check()
            if self._error:
                self._let_ranks_end()
        finally:
            self._host.end(0)
            self._link.close()
            if self._folder is not None:
                self._folder.remove()
        if self._error:
            # Nobody may be there to read it.
            with contextlib.suppress(OSError):
                tell("hvdrun", self._error)
        return 1 if self._exit_status is None else self._exit_status

    def _let_ranks_end(self) -> None:
        """Gives the ranks time to notice themselves what is lost."""
        deadline = time.monotonic() + _LAST_SECONDS
        while self._host.ranks.any_runs() and not self._signals:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            self._loop.step(left)
            self._host.ranks.tell_exits()

    def _connect(self, config: Config, index: int, num_hosts: int) -> Stream:
        identity = Identity(
            Role.AGENT,
            index,
            num_hosts,
            generation=0,
            pid=os.getpid(),
            host=config.hostname or interfaces.host_name(),
        )
        rendezvous = Rendezvous(
            self._host.rendezvous,
            self._secret,
            identity,
            timeout_seconds=config.start_timeout_seconds,
            # Whoever starts agents is there; otherwise it may come later.
            is_of_rank_0=self._own is not None,
            tls=tls.context(config, is_server=False),
        )
        return Stream(rendezvous.detach())

    # ---- What happens here ----

    def rank_started(self, rank: int, pid: int) -> None:
        self._link.send(Kind.STARTED, {"rank": rank, "pid": pid})

    def rank_wrote(self, rank: int, stream: int, data: bytes) -> None:
        self._untaken_bytes += len(data)
        self._pause()
        self._link.send(Kind.OUTPUT, OUTPUT_HEADER.pack(rank, stream) + data)

    def rank_exited(
        self, rank: int, exit_status: int, killed_by: int | None
    ) -> None:
        message = {
            "rank": rank,
            "exit_status": exit_status,
            "signal": killed_by,
        }
        self._link.send(Kind.EXITED, message)

    def _pause(self) -> None:
        self._host.ranks.pause(self._untaken_bytes >= OUTPUT_WINDOW_BYTES)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if not self._is_connected:
            raise SystemExit(128 + number)
        self._signals.append(number)

    def _time_left(self) -> float | None:
        deadline = self._link.next_deadline()
        if deadline is None:
            return 0.0
        deadline = min(deadline, self._host.next_deadline() or deadline)
        return max(0.0, deadline - time.monotonic())

    def _on_lost(self, loss: Loss) -> None:
        why = loss.text
        self._error = f"the job was lost: {why}. This host's ranks are ended"

    # ---- What the job says ----

    def _on_message(self, kind: Kind, body: bytes) -> None:
        if kind == Kind.PROGRAM:
            if self._program is None:
                self._program = os.memfd_create("hvdrun-program")
            os.write(self._program, body)
            return
        if kind == Kind.KILL:
            self._host.kill()
            return
        told = read_json(body)
        match kind:
            case Kind.START:
                self._start(told)
            case Kind.SIGNAL:
                ranks = told["ranks"]
                self._host.signal(
                    int(told["signal"]),
                    None if ranks is None else [int(rank) for rank in ranks],
                    to_groups=bool(told["to_groups"]),
                )
            case Kind.TAKEN:
                self._untaken_bytes -= int(told["num_bytes"])
            case Kind.END:
                self._exit_status = int(told["exit_status"])
            case Kind.CHECK:
                self._check(told)
            case Kind.LOOK:
                self._begin_look(told)
            case Kind.REFUSED:
                self._error = str(told["text"])
            case _:
                raise ValueError(kind)

    def _start(self, message: dict[str, Any]) -> None:
        self._host.place = place = Place(**message["place"])
        try:
            with file_limit_named(place.num_ranks):
                if self._stdin is None:
                    self._told = message.get("own", self._told)
                    self._stdin = self._get_ready(str(message["host"]))
                assert self._own is not None
                self._host.start(self._own, self._stdin, message["ranks"])
                self._stdin.close(keeps_program=place.is_elastic)
        except UsageError as error:
            self._fail(str(error), error.exit_status)
        except (HvdError, OSError) as error:
            self._fail(str(error), 2)

    def _get_ready(self, host: str) -> StandardInput:
        """Does what must be done once, before the first rank is started."""
        own, told = self._own, self._told
        if own is None:
            environ = {**os.environ, **told["environ"]}
            command, is_horovod = told["command"], told["is_horovod"]
            own = Launch(command, environ, b"", is_horovod)
            if told["directory"] is not None:
                os.chdir(told["directory"])
        environ = {"HVD_HOSTNAME": host, **own.environ}
        Config.from_environ(environ)  # a bad setting is one message here
        check_command(own.command, environ.get("PATH"))
        raise_file_limit(self._host.place.num_ranks)
        self._folder = Folder(environ)
        self._host.keep_records(self._folder)
        secret = self._secret
        self._own = dataclasses.replace(own, environ=environ, secret=secret)
        return StandardInput(own.command, self._program)

    def _check(self, message: dict[str, Any]) -> None:
        server = None
        try:
            what = message["what"]
            if what == "facts":
                answer = probe.facts()
            elif what == "serve":
                server = SpeedServer(str(message["peer"]), self._secret)
                answer = {"address": server.address}
            else:
                speed = probe.measure(str(message["address"]), self._secret)
                answer = dataclasses.asdict(speed)
        except (HvdError, OSError) as error:
            answer = {"error": str(error)}
        self._link.send(Kind.CHECKED, answer)
        if server is not None:
            # Who measures will say what went wrong.
            with contextlib.suppress(HvdError, OSError):
                server.serve()

    def _begin_look(self, message: dict[str, Any]) -> None:
        told = message["ranks"]
        ranks = None if told is None else {int(m): int(r) for m, r in told}
        place = self._host.place
        self._looked_at = place.ranks() if ranks is None else [*ranks.values()]
        self._is_looking = True
        self._host.look(int(message["num_samples"]), ranks)
        self._tell_records()

    def _tell_records(self) -> None:
        """Tells the job what was found, when the look that it wants is over."""
        if not self._is_looking or self._host.is_looking():
            return
        self._is_looking = False
        if self._folder is not None:
            ranks = self._looked_at
            for rank, part, piece in packed(self._folder, ranks, _PIECE_BYTES):
                header = RECORD_HEADER.pack(rank, list(Part).index(part))
                self._link.send(Kind.RECORD, header + piece)
        self._link.send(Kind.LOOKED, {})

    def _fail(self, text: str, exit_status: int) -> None:
        message = {"text": text, "exit_status": exit_status}
        self._link.send(Kind.FAILED, message)


def main() -> int:
    """Runs the agent of this host, as the standard input says."""
    told = json.loads(sys.stdin.buffer.readline())
    parent = told.get("parent")  # of a provider that wants it
    if parent is not None:
        die_with(parent, signal.SIGKILL)
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    index = told["index"]
    if index is None:  # srun gives the same input to all
        index = int(os.environ["SLURM_PROCID"])
    try:
        config = Config.from_environ(told["settings"])
        return Agent(config, index, told["num_hosts"]).run()
    except (HvdError, OSError) as error:
        tell("hvdrun", error)
        return 2


if __name__ == "__main__":
    sys.exit(main())
