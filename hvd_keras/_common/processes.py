"""What the kernel says of a process."""

from __future__ import annotations

import dataclasses
import os


@dataclasses.dataclass(frozen=True)
class Process:
    """A process that is there, perhaps as a zombie."""

    name: str
    state: str
    parent: int  # its pid
    start_ticks: int  # since boot; with the pid it names one process for ever

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.state not in ("Z", "X")

    @property
    def started_at(self) -> float:
        """When it started, in seconds since boot."""
        return self.start_ticks / os.sysconf("SC_CLK_TCK")


def find(pid: int) -> Process | None:
    """Returns what /proc says of `pid`; None if it says nothing."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            head, _, tail = file.read().rpartition(")")
    except (OSError, ValueError):
        return None
    fields = tail.split()
    name = head.partition("(")[2]
    return Process(name, fields[0], int(fields[1]), int(fields[19]))
