"""Reads the timeline of a job: a folder with one file of each rank.

A file is a sequence of records of 64 bytes, little-endian, as
`tf_ops/observe/timeline_format.h` lays them out. A rank appends to it while it
runs, so the file of a rank that was killed ends early but can be read. Times
are nanoseconds of the rank's monotonic clock. The leaders of hosts have
measured how far their clock is from that of host 0; `read` adds it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from hvd_keras._common.files import read_bounded
from hvd_keras._common.json_text import parsed, whole, words
from hvd_keras._records.files import NAME, VERSION, file_name

KINDS = (
    "allreduce", "allgather", "broadcast", "alltoall", "reducescatter",
    "barrier", "join",
)  # fmt: skip
OPS = ("Average", "Sum", "Adasum", "Min", "Max", "Product")
DTYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64",
    "int64", "float16", "bfloat16", "float32", "float64", "float8_e4m3fn",
    "float8_e5m2",
)  # fmt: skip
STATES = ("waiting", "negotiated", "running", "done", "failed")
PHASES = ("pack", "reduce", "wire", "copy")

CALL = np.dtype(
    [
        ("number", "u8"),  # of the call in its process, from 1 on
        ("collective_id", "u8"),  # in its process set; 0: not negotiated
        ("name", "u4"),  # index into `names`
        ("kind", "u1"),
        ("op", "u1"),
        ("dtype", "u1"),  # of the first tensor
        ("state", "u1"),
        ("process_set", "i4"),
        ("num_tensors", "u4"),
        ("num_bytes", "u8"),  # of the inputs
        ("enqueued_ns", "i8"),  # times: 0 means it has not happened
        ("negotiated_ns", "i8"),
        ("begun_ns", "i8"),
        ("ended_ns", "i8"),
        ("last_rank", "i4"),  # that came; -1: only the coordinator knows it
        ("late_ns", "i8"),  # after the first rank
        ("on_gpu", "?"),
    ]
)
PHASE = np.dtype(
    [
        ("collective_id", "u8"),
        ("process_set", "i4"),
        ("kind", "u1"),
        ("begin_ns", "i8"),
        ("end_ns", "i8"),
        ("num_bytes", "u8"),
    ]
)
STEP = np.dtype(
    [("step", "i8"), ("epoch", "i4"), ("begin_ns", "i8"), ("end_ns", "i8")]
)

_RECORD = np.dtype(
    [
        ("type", "u1"),
        ("kind", "u1"),
        ("op", "u1"),
        ("dtype", "u1"),
        ("process_set", "<i4"),
        ("number", "<u8"),
        ("time_ns", "<i8"),
        ("collective_id", "<u8"),
        ("num_bytes", "<u8"),
        ("other_ns", "<i8"),
        ("name", "<u4"),
        ("num_tensors", "<u4"),
        ("last_rank", "<i4"),
        ("code", "u1"),
        ("on_gpu", "u1"),
        ("unused", "<u2"),
    ]
)
_TEXT_BYTES = _RECORD.itemsize - 8
(
    _NAME, _HEADER, _ADMITTED, _NEGOTIATED, _BEGUN, _ENDED, _PHASE, _STEP,
    _CLOCK, _DROPPED,
) = range(1, 11)  # fmt: skip
MAX_BYTES = 4 << 30  # of a file
MAX_RANKS = 1 << 16  # of a job
# Numbers beyond these are of no job; sums of those within fit 64 bits.
_MOST_NS = 1 << 60
_MOST_BYTES = 1 << 50
_MOST_IDS = 1 << 40
_MOST_SETS = 1 << 20
# Without a reading of the clock, that of the wall is taken for it.
_WALL_ERROR_NS = 10**9


class RecordingError(Exception):
    """A folder or a file is not a timeline."""


@dataclasses.dataclass
class RankRecording:
    """What one rank did. The times in its arrays are those of host 0."""

    rank: int
    host: str
    pid: int
    clock_offset_ns: int  # was added to this rank's times, here at the start
    clock_error_ns: int  # they may be wrong by so much
    num_dropped: int  # records that are missing because the disk was too slow
    settings: dict[str, str]  # versions, HVD_* settings, the machine
    names: list[str]
    calls: np.ndarray  # of CALL, in the order of submission
    phases: np.ndarray  # of PHASE
    steps: np.ndarray  # of STEP
    command: str = ""
    began_unix_ns: int = 0


@dataclasses.dataclass
class Recording:
    """A job: its ranks in order. A rank without a file is absent."""

    ranks: list[RankRecording]
    size: int


def read(folder: str | os.PathLike[str]) -> Recording:
    """Reads the files of all ranks.

    Args:
        folder: Where the ranks wrote.

    Raises:
        RecordingError: There is no file of a rank, or one is malformed.
        OSError: A file cannot be read.
    """
    files: list[_File] = []
    for name in sorted(os.listdir(folder)):
        if NAME.fullmatch(name):
            one = _File.read(os.path.join(folder, name))
            if one is not None:
                files.append(one)
    if not files:
        raise RecordingError(
            f"{os.fspath(folder)!r} must hold files "
            f"{file_name(0)}, ... Received: none that has begun."
        )
    files.sort(key=lambda one: one.rank)
    size = files[0].header.size
    # An earlier, larger job may have left the others.
    files = [one for one in files if one.header.size == size]
    if len({one.rank for one in files}) < len(files):
        raise RecordingError(
            f"{os.fspath(folder)!r} must hold one file of each rank. Received: "
            f"ranks {', '.join(str(one.rank) for one in files[:64])}."
        )
    clocks = _Clocks(files)
    ranks = [one.recording(clocks) for one in files]
    return Recording(ranks, size)


@dataclasses.dataclass(frozen=True)
class _Header:
    """What a rank says of itself."""

    rank: int
    size: int
    pid: int
    host: str
    clock: str
    monotonic_ns: int
    unix_ns: int
    command: str
    settings: dict[str, str]

    @classmethod
    def of(cls, said: Any) -> _Header:
        size = whole(said["size"], 1, MAX_RANKS)
        return cls(
            rank=whole(said["rank"], 0, size - 1),
            size=size,
            pid=whole(said["pid"]),
            host=words(said["host"]),
            clock=words(said["clock"]),
            monotonic_ns=whole(said.get("monotonic_ns", 0), 0, _MOST_NS),
            unix_ns=whole(said.get("unix_ns", 0), 0),
            command=words(said.get("command", "")),
            settings={
                words(key): words(str(value))
                for key, value in said.get("settings", {}).items()
            },
        )


class _File:
    """One rank's file."""

    def __init__(self, header: _Header, data: bytes) -> None:
        self.header = header
        self.rank, self.clock = header.rank, header.clock
        self._data = data
        self._records = np.frombuffer(data, _RECORD)
        self._makes_sense = _makes_sense(self._records)
        self.clocks = self.of_type(_CLOCK)

    @classmethod
    def read(cls, path: str) -> _File | None:
        """Returns the file at `path`; None: its rank had not begun it."""
        data = read_bounded(path, MAX_BYTES)
        if data is None:
            raise RecordingError(
                f"{path!r} must be a regular file that can be read, of "
                f"{MAX_BYTES:,} bytes at most."
            )
        data = data[: len(data) - len(data) % _RECORD.itemsize]
        records = np.frombuffer(data, _RECORD)
        if not len(records):
            return None  # killed before it had begun
        try:
            said = parsed(_texts(data, records, _HEADER)[0])
            version = said["version"]
            header = _Header.of(said) if version == VERSION else None
        except (LookupError, TypeError, ValueError, AttributeError):
            if (records["type"] == _HEADER).all():
                return None  # killed in the middle of it
            raise RecordingError(f"{path!r} must be a timeline.") from None
        if header is None:
            raise RecordingError(
                f"{path!r} must be a timeline of version {VERSION}. "
                f"Received: version {str(version)[:20]!r}."
            )
        return cls(header, data)

    def of_type(self, number: int) -> np.ndarray:
        is_one = self._records["type"] == number
        return self._records[is_one & self._makes_sense]

    def recording(self, clocks: _Clocks) -> RankRecording:
        header = self.header
        names, places = self._names()
        clock = clocks.of(self.clock)
        calls, phases, steps = self._calls(), self._phases(), self._steps()
        calls["name"] = places(calls["name"])
        times = [calls[n] for n in CALL.names or () if n.endswith("_ns")]
        for column in times[:-1]:  # the last is a duration
            own = column[column != 0]
            column[column != 0] = np.maximum(own + clock.offsets(own), 1)
        for array in (phases, steps):
            for name in ("begin_ns", "end_ns"):
                own = array[name]
                array[name] = np.maximum(own + clock.offsets(own), 0)
        return RankRecording(
            rank=self.rank,
            host=header.host,
            pid=header.pid,
            clock_offset_ns=int(
                clock.offsets(np.array([header.monotonic_ns]))[0]
            ),
            clock_error_ns=clock.error_ns,
            num_dropped=int(self.of_type(_DROPPED)["number"].sum()),
            settings=header.settings,
            command=header.command,
            began_unix_ns=header.unix_ns,
            names=names,
            calls=calls,
            phases=phases,
            steps=steps,
        )

    def _names(self) -> tuple[list[str], Callable[[np.ndarray], np.ndarray]]:
        """Returns the names, and what finds their places by their ids."""
        texts = _texts(self._data, self._records, _NAME)
        ids = np.array(sorted(texts), np.int64)
        names = [texts[one] for one in ids.tolist()]

        def places(wanted: np.ndarray) -> np.ndarray:
            found = np.searchsorted(ids, wanted)
            known = found < len(ids)
            known[known] = ids[found[known]] == wanted[known]
            # The record of others was dropped.
            return np.where(known, found, len(ids))

        return [*names, "(unknown)"], places

    def _calls(self) -> np.ndarray:
        admitted = self.of_type(_ADMITTED)
        admitted = admitted[np.argsort(admitted["number"], kind="stable")]
        _, first = np.unique(admitted["number"], return_index=True)
        admitted = admitted[first]
        calls = np.zeros(len(admitted), CALL)
        for name in (
            "number", "name", "kind", "op", "dtype", "process_set",
            "num_tensors", "num_bytes",
        ):  # fmt: skip
            calls[name] = admitted[name]
        calls["enqueued_ns"] = admitted["time_ns"]
        calls["on_gpu"] = admitted["on_gpu"] != 0
        calls["last_rank"] = -1
        self._add_steps(calls)
        return calls

    def _add_steps(self, calls: np.ndarray) -> None:
        """Adds to the calls what became of them."""
        for number, column, state in (
            (_NEGOTIATED, "negotiated_ns", "negotiated"),
            (_BEGUN, "begun_ns", "running"),
            (_ENDED, "ended_ns", "done"),
        ):
            records = self.of_type(number)
            at = np.searchsorted(calls["number"], records["number"])
            is_known = at < len(calls)
            is_known[is_known] = (
                calls["number"][at[is_known]] == records["number"][is_known]
            )
            at, records = at[is_known], records[is_known]
            calls[column][at] = records["time_ns"]
            calls["state"][at] = STATES.index(state)
            has_id = records["collective_id"] != 0
            calls["collective_id"][at[has_id]] = records["collective_id"][
                has_id
            ]
            if number == _NEGOTIATED:
                calls["last_rank"][at] = records["last_rank"]
                calls["late_ns"][at] = records["other_ns"]
            if number == _ENDED:
                calls["state"][at[records["code"] != 0]] = STATES.index(
                    "failed"
                )

    def _phases(self) -> np.ndarray:
        records = self.of_type(_PHASE)
        phases = np.zeros(len(records), PHASE)
        for name in ("collective_id", "process_set", "kind", "num_bytes"):
            phases[name] = records[name]
        phases["begin_ns"] = records["time_ns"]
        phases["end_ns"] = records["other_ns"]
        return phases[phases["kind"] < len(PHASES)]

    def _steps(self) -> np.ndarray:
        records = self.of_type(_STEP)
        steps = np.zeros(len(records), STEP)
        steps["step"] = records["number"]
        steps["epoch"] = records["process_set"]
        steps["begin_ns"] = records["time_ns"]
        steps["end_ns"] = records["other_ns"]
        return steps


def _texts(data: bytes, records: np.ndarray, number: int) -> dict[int, str]:
    """The texts of a type by id; their parts come one after the other."""
    parts: dict[int, bytearray] = {}
    for index in np.flatnonzero(records["type"] == number):
        at = int(index) * _RECORD.itemsize
        length = data[at + 1]
        key = int.from_bytes(data[at + 4 : at + 8], "little")
        parts.setdefault(key, bytearray()).extend(
            data[at + 8 : at + 8 + min(length, _TEXT_BYTES)]
        )
    return {k: v.decode(errors="replace") for k, v in parts.items()}


def _makes_sense(records: np.ndarray) -> np.ndarray:
    """Which records hold numbers that a job may have; not of texts."""
    is_call = records["type"] == _ADMITTED
    is_step = records["type"] == _STEP
    in_bounds = [
        (records["time_ns"] >= 0) & (records["time_ns"] <= _MOST_NS),
        np.abs(records["other_ns"].astype("f8")) <= _MOST_NS,
        records["num_bytes"] <= _MOST_BYTES,  # or ns, of a clock
        records["number"] <= _MOST_IDS,
        records["collective_id"] <= _MOST_IDS,
        # There, it is the epoch.
        is_step
        | (records["process_set"] >= 0) & (records["process_set"] < _MOST_SETS),
        ~is_call | (records["kind"] < len(KINDS)),
        ~is_call | (records["op"] < len(OPS)),
        ~is_call | (records["dtype"] < len(DTYPES)),
    ]
    found: np.ndarray = np.logical_and.reduce(in_bounds)
    return found


class _Clock:
    """How far one clock is from that of host 0, at times."""

    def __init__(self, readings: np.ndarray) -> None:
        """Makes it of records of readings; none: it is that of host 0."""
        readings = readings[np.argsort(readings["time_ns"])]
        self._at = readings["time_ns"].astype("i8")
        self._offsets = readings["other_ns"].astype("i8")
        self.error_ns = int(readings["num_bytes"].max(initial=0))

    def offsets(self, times: np.ndarray) -> np.ndarray:
        """What to add to `times`: linear between readings."""
        if not len(self._at):
            return np.zeros(len(times), "i8")
        # Small numbers: a float has too few digits for the whole times.
        first = int(self._offsets[0])
        change = np.interp(
            (times - self._at[0]).astype("f8"),
            (self._at - self._at[0]).astype("f8"),
            (self._offsets - first).astype("f8"),
        )
        return np.rint(change).astype("i8") + first


class _Clocks:
    """The clocks of the hosts. Ranks of one host share one."""

    def __init__(self, files: list[_File]) -> None:
        self._clocks: dict[str, _Clock] = {}
        # Rank 0's host is the reference: it measures nothing.
        first = files[0]
        for one in files:
            if one.clock in self._clocks:
                continue
            readings = np.concatenate(
                [each.clocks for each in files if each.clock == one.clock]
            )
            if one.clock == first.clock and first.rank == 0:
                readings = readings[:0]
            elif not len(readings):
                readings = _reading_of_wall_clocks(one, first)
            self._clocks[one.clock] = _Clock(readings)

    def of(self, clock: str) -> _Clock:
        return self._clocks[clock]


def _reading_of_wall_clocks(file: _File, first: _File) -> np.ndarray:
    """What stands in for a reading of host 0's clock."""
    reading = np.zeros(1, _RECORD)
    here, there = (
        one.header.unix_ns - one.header.monotonic_ns for one in (file, first)
    )
    reading["time_ns"] = file.header.monotonic_ns
    reading["other_ns"] = max(-_MOST_NS, min(here - there, _MOST_NS))
    reading["num_bytes"] = _WALL_ERROR_NS
    return reading
