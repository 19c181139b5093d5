"""What the ranks of a job, and hvdrun, leave in a folder: names and contents.

Of each rank N:

* `flight_rank_N.jsonl`: its last collectives, see tf_ops/observe/flight_file.h;
* `stacks_rank_N.txt`: Python's stacks, at each SIGUSR2 or a crash;
* `error_rank_N.txt`: the traceback of the exception that ended it;
* `identity_rank_N.json`: what it says of itself in `init()`;
* `process_rank_N.json`: what hvdrun on its host saw of the process.

`job.json` is of hvdrun: how the ranks have ended.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from hvd_keras._observe import stacks
from hvd_keras._observe.stacks import Frame, Stack

JOB = "job.json"


class Part(enum.Enum):
    """The files of a rank."""

    FLIGHT = "flight_rank_{}.jsonl"
    STACKS = "stacks_rank_{}.txt"
    ERROR = "error_rank_{}.txt"
    IDENTITY = "identity_rank_{}.json"
    PROCESS = "process_rank_{}.json"

    def name_for(self, rank: int) -> str:
        """Returns the name of the file of a rank."""
        return self.value.format(rank)


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """One collective of one rank; times are seconds of the Unix clock."""

    number: int
    kind: str
    name: str
    process_set: int = 0
    id: int = 0  # the same on all ranks; 0: it was not agreed on
    op: str = ""
    dtype: str = ""
    shape: tuple[int, ...] | None = None  # of the first tensor
    tensors: int = 0
    bytes: int = 0
    state: str = "done"
    error: str = ""
    enqueued: float = 0.0
    negotiated: float = 0.0
    begun: float = 0.0
    ended: float = 0.0
    last_rank: int = -1
    late: float = 0.0  # seconds, the last rank after the first

    @property
    def key(self) -> tuple[int, str]:
        """What pairs it with that of other ranks."""
        return self.process_set, self.name

    @property
    def waits(self) -> bool:
        """Whether it has waited for other ranks in vain, as far as one knows.

        One that ran, and was given up when a rank left, has met all ranks.
        """
        if self.state in ("waiting", "negotiated"):
            return not self.begun
        lost = self.error in ("Stalled", "PeerLost", "Shutdown")
        return self.state == "failed" and lost and not self.begun


@dataclasses.dataclass
class Rank:
    """All that is known of one rank."""

    rank: int
    host: str = ""
    pid: int = 0
    reason: str = ""  # why it wrote its record
    written: float = 0.0  # when it did
    num_steps: int = 0  # of an optimizer or tape, which it has finished
    has_record: bool = False
    records: list[Record] = dataclasses.field(default_factory=list)
    samples: list[Stack] = dataclasses.field(default_factory=list)
    error: Stack = ()
    foreign: tuple[str, ...] = ()  # folders whose code is not the user's
    state: str = ""  # of the process, as in /proc/PID/stat
    exit_status: int | None = None
    signal: str = ""  # that killed it
    was_ended: bool = False  # by hvdrun
    told: str = ""  # the error it has told hvdrun
    is_lost: bool = False  # with its host

    @property
    def frame(self) -> Frame | None:
        """Where it is in the user's code, or was when it failed."""
        return stacks.own_frame(self.error, self.foreign) or stacks.usual_frame(
            self.samples, self.foreign
        )

    @property
    def last_done(self) -> Record | None:
        """The last collective that it has finished."""
        done = [one for one in self.records if one.state == "done"]
        return max(done, key=lambda one: one.ended, default=None)

    def waiting(self) -> list[Record]:
        """What it waits for, or waited for when it ended, in its order."""
        last = self.last_done
        since = last.ended if last else 0.0
        return [
            one
            for one in self.records
            if one.waits and (not one.ended or one.ended >= since)
        ]


@dataclasses.dataclass
class Job:
    """All that is known of a job."""

    size: int
    ranks: dict[int, Rank]
    leavers: list[int] = dataclasses.field(default_factory=list)  # in order
    # By a signal to hvdrun, before any rank had failed.
    was_interrupted: bool = False

    @property
    def hosts(self) -> list[str]:
        """The hosts, that of rank 0 first."""
        in_order = sorted(self.ranks.values(), key=lambda one: one.rank)
        return list(dict.fromkeys(one.host for one in in_order))


def read(folder: str) -> Job:
    """Reads all that there is; what makes no sense counts as missing.

    Raises:
        OSError: There is no such folder.
    """
    names = os.listdir(folder)
    told = _json(os.path.join(folder, JOB))
    ranks: dict[int, Rank] = {}
    size = int(told.get("size", 0))
    known = {Part.FLIGHT: _read_flight, Part.IDENTITY: _read_rank}
    for name in names:
        rank = _rank_of(name)
        if rank is None or (size and rank >= size):
            continue
        ranks.setdefault(rank, Rank(rank))
    for rank, found in ranks.items():
        path = os.path.join(folder, Part.IDENTITY.name_for(rank))
        found.foreign = tuple(_json(path).get("foreign", ()))
        for part in (Part.IDENTITY, Part.FLIGHT):
            path = os.path.join(folder, part.name_for(rank))
            size = max(size, known[part](path, found))
        text = _text(os.path.join(folder, Part.STACKS.name_for(rank)))
        found.samples = stacks.of_main_thread(text)
        text = _text(os.path.join(folder, Part.ERROR.name_for(rank)))
        found.error = stacks.of_error(text)
        seen = _json(os.path.join(folder, Part.PROCESS.name_for(rank)))
        found.state = str(seen.get("state", ""))
    for rank in range(size):
        ranks.setdefault(rank, Rank(rank))
    for row in told.get("ranks", []):
        _take_exit(row, ranks[int(row["rank"])])
    if len({one.host for one in ranks.values()}) == 1:
        for one in ranks.values():
            one.host = ""  # says nothing
    leavers = [int(one) for one in told.get("leavers", [])]
    return Job(size, ranks, leavers, bool(told.get("was_interrupted")))


def _rank_of(name: str) -> int | None:
    for part in Part:
        head, _, tail = part.value.partition("{}")
        number = name.removeprefix(head).removesuffix(tail)
        if (
            number.isascii()
            and number.isdigit()
            and name == head + number + tail
        ):
            return int(number)
    return None


def _take_exit(row: Mapping[str, Any], rank: Rank) -> None:
    rank.host = rank.host or str(row["host"])
    rank.pid = rank.pid or int(row["pid"])
    rank.exit_status = row["exit_status"]
    rank.signal = str(row["signal"])
    rank.was_ended = bool(row["was_ended"])
    rank.told = str(row["told"])
    rank.is_lost = bool(row["is_lost"])


def _read_rank(path: str, rank: Rank) -> int:
    said = _json(path)
    rank.host = str(said.get("host", ""))
    rank.pid = int(said.get("pid", 0))
    return int(said.get("size", 0))


def _read_flight(path: str, rank: Rank) -> int:
    lines = _text(path).splitlines()
    try:
        header, *rows = map(json.loads, lines)
        offset = (header["unix_ns"] - header["monotonic_ns"]) / 1e9
        rank.host, rank.pid = str(header["host"]), int(header["pid"])
        rank.reason = str(header["reason"])
        rank.num_steps = int(header["steps"])
        rank.written = header["unix_ns"] / 1e9
        rank.records = [_record(row, offset) for row in rows]
        size = int(header["size"])
    except (ValueError, LookupError, TypeError):
        return 0
    rank.has_record = True
    return size


def _record(row: Mapping[str, Any], offset: float) -> Record:
    values = {}
    for key, value in row.items():
        if key == "late_ns":
            values["late"] = value / 1e9
        elif key.endswith("_ns"):
            values[key.removesuffix("_ns")] = value / 1e9 + offset
        elif key == "shape":
            values["shape"] = tuple(value)
        elif key in Record.__dataclass_fields__:
            # Thousands of records on each rank have the same few texts.
            is_text = isinstance(value, str)
            values[key] = sys.intern(value) if is_text else value
    return Record(**values)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _json(path: str) -> dict[str, Any]:
    try:
        value = json.loads(_text(path))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
