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
import os
import sys
from collections.abc import Mapping
from typing import Any

from hvd_keras._common import files, user_code
from hvd_keras._common.json_text import parsed, whole, words
from hvd_keras._records import stacks
from hvd_keras._records.stacks import Frame, Stack

JOB = "job.json"
MAX_BYTES = 16 << 20  # of a file: larger ones are not of a rank
MAX_RANKS = 1 << 16  # of a job
_MOST_RECORDS = 1 << 14  # of a rank, which keeps 4,096 and what waits


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
    epoch: int = 0  # of `fit`, which it has begun, from 1 on; 0: no `fit` runs
    batch: int = 0  # of that epoch, likewise
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
    exit_call: str = ""  # by which it has ended itself, and where
    told_end: bool = False  # it has told hvdrun that it ends well
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


# Ends the exit call of a rank that was in `fit`.
IN_FIT = ", inside `fit`"


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
    size = told_size = _number(told, "size", MAX_RANKS)
    ranks: dict[int, Rank] = {}
    for name in names:
        rank = _rank_of(name)
        if rank is not None and rank < (told_size or MAX_RANKS):
            ranks.setdefault(rank, Rank(rank))
    for rank, found in ranks.items():
        said = _json(os.path.join(folder, Part.IDENTITY.name_for(rank)))
        size = max(size, _take_identity(said, found))
        path = os.path.join(folder, Part.FLIGHT.name_for(rank))
        size = max(size, _take_flight(_text(path), found))
        text = _text(os.path.join(folder, Part.STACKS.name_for(rank)))
        found.samples = stacks.of_main_thread(text)
        text = _text(os.path.join(folder, Part.ERROR.name_for(rank)))
        found.error = stacks.of_error(text)
        seen = _json(os.path.join(folder, Part.PROCESS.name_for(rank)))
        found.state = _word(seen, "state")
    for rank in range(size):
        ranks.setdefault(rank, Rank(rank))
    for row in _list(told, "ranks"):
        _take_exit(row, ranks)
    if len({one.host for one in ranks.values()}) == 1:
        for one in ranks.values():
            one.host = ""  # says nothing
    leavers = [
        one
        for one in _list(told, "leavers")
        if type(one) is int and one in ranks
    ]
    return Job(size, ranks, leavers, bool(told.get("was_interrupted")))


def process_of(path: str) -> int:
    """Returns the process that an identity tells of; 0: none."""
    return _number(_json(path), "pid")


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


def _take_exit(row: Any, ranks: Mapping[int, Rank]) -> None:
    try:
        rank = ranks[whole(row["rank"])]
        status = row["exit_status"]
        told = dataclasses.replace(
            rank,
            host=rank.host or words(row["host"]),
            pid=rank.pid or whole(row["pid"]),
            exit_status=None if status is None else whole(status),
            signal=words(row["signal"]),
            was_ended=bool(row["was_ended"]),
            told=words(row["told"]),
            exit_call=words(row.get("exit_call", "")),
            told_end=bool(row.get("told_end")),
            is_lost=bool(row["is_lost"]),
        )
    except (ValueError, LookupError, TypeError):
        return
    vars(rank).update(vars(told))
    printed = row.get("printed")
    if isinstance(printed, str) and printed and not rank.error:
        rank.error = stacks.of_error(printed)
        rank.foreign = rank.foreign or user_code.foreign_folders()


def _take_identity(said: Mapping[str, Any], rank: Rank) -> int:
    rank.host = _word(said, "host")
    rank.pid = _number(said, "pid")
    rank.foreign = tuple(
        one for one in _list(said, "foreign") if isinstance(one, str)
    )
    return _number(said, "size", MAX_RANKS)


def _take_flight(text: str, rank: Rank) -> int:
    lines = text.splitlines()
    try:
        header = parsed(lines[0])
        rows = map(parsed, lines[1:][-_MOST_RECORDS:])
        unix_ns = whole(header["unix_ns"])
        offset = (unix_ns - whole(header["monotonic_ns"])) / 1e9
        told = dataclasses.replace(
            rank,
            host=words(header["host"]),
            pid=whole(header["pid"]),
            reason=words(header["reason"]),
            num_steps=whole(header["steps"]),
            epoch=whole(header.get("epoch", 0)),
            batch=whole(header.get("batch", 0)),
            written=unix_ns / 1e9,
            has_record=True,
            records=[_record(row, offset) for row in rows],
        )
        size = whole(header["size"], 1, MAX_RANKS)
    except (ValueError, LookupError, TypeError, AttributeError):
        return 0
    vars(rank).update(vars(told))
    return size


_IS_TEXT = {
    each.name: each.type == "str" for each in dataclasses.fields(Record)
}


def _record(row: Mapping[str, Any], offset: float) -> Record:
    values: dict[str, Any] = {}
    for key, value in row.items():
        if key == "late_ns":
            values["late"] = whole(value) / 1e9
        elif key.endswith("_ns"):
            values[key.removesuffix("_ns")] = whole(value) / 1e9 + offset
        elif key == "shape":
            values["shape"] = tuple(map(whole, value))
        elif key in _IS_TEXT:
            # Thousands of records on each rank have the same few texts.
            is_text = _IS_TEXT[key]
            values[key] = sys.intern(words(value)) if is_text else whole(value)
    return Record(**values)


def _text(path: str) -> str:
    data = files.read_bounded(path, MAX_BYTES)
    return "" if data is None else data.decode("utf-8", "replace")


def _json(path: str) -> dict[str, Any]:
    try:
        value = parsed(_text(path))
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _number(said: Mapping[str, Any], key: str, most: int = 1 << 62) -> int:
    try:
        return whole(said.get(key), 0, most)
    except ValueError:
        return 0


def _word(said: Mapping[str, Any], key: str) -> str:
    try:
        return words(said.get(key))
    except ValueError:
        return ""


def _list(said: Mapping[str, Any], key: str) -> list[Any]:
    value = said.get(key)
    return value if isinstance(value, list) else []
