"""What the launcher knows of one rank."""

from __future__ import annotations

import dataclasses
import signal

from hvd_keras._rendezvous.protocol import process_name


@dataclasses.dataclass
class Rank:
    """A rank, on this host or on another one."""

    rank: int
    host: str = ""  # "": the job has one host
    pid: int = 0  # 0: it was not started yet
    exit_status: int | None = None  # 128 + signal; None: it runs
    signal: int | None = None  # the one that killed it
    sent: int | None = None  # the last signal that we sent to end it
    is_lost: bool = False  # with its host: nobody knows how it ended
    # In an elastic job `rank` is the number of the member.
    generation: int = 0  # the last one that it was in
    index: int = -1  # its slot on the host; -1: not known yet

    @property
    def has_ended(self) -> bool:
        """Whether it was started and runs no more, as far as one knows."""
        return self.exit_status is not None

    @property
    def process(self) -> str:
        """Names its process in messages."""
        return process_name(self.host, self.pid)

    def describe_exit(self) -> str:
        """How it ended, to follow the words "Rank N"."""
        process = self.process
        if self.is_lost:
            return f"({process}) was lost with its host"
        if self.signal is not None:
            return f"({process}) was killed by {self.signal_name()}"
        return f"({process}) exited with code {self.exit_status}"

    def signal_name(self) -> str:
        """The name of the signal that killed it."""
        number = self.signal or 0
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"
