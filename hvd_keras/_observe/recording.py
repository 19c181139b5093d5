"""Reads the timeline of a job: a folder with one file of each rank.

A file is a sequence of records of 64 bytes, little-endian, as
`tf_ops/observe/timeline_format.h` lays them out. A rank appends to it while it
runs, so the file of a rank that was killed ends early but can be read. Times
are nanoseconds of the rank's monotonic clock. The leaders of hosts have
measured how far their clock is from that of host 0; `read` adds it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import numpy as np

from hvd_keras._observe.files import NAME, VERSION, file_name

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
    files = []
    for name in sorted(os.listdir(folder)):
        if NAME.fullmatch(name):
            one = _File(os.path.join(folder, name))
            if one.header is not None:
                files.append(one)
    if not files:
        raise RecordingError(
            f"{os.fspath(folder)!r} must hold files "
            f"{file_name(0)}, ... Received: none that has begun."
        )
    files.sort(key=lambda one: one.rank)
    size = int(files[0].header["size"])
    # An earlier, larger job may have left the others.
    files = [one for one in files if int(one.header["size"]) == size]
    clocks = _Clocks(files)
    ranks = [one.recording(clocks) for one in files]
    return Recording(ranks, size)


class _File:
    """One rank's file."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            data = file.read()
        whole = len(data) - len(data) % _RECORD.itemsize
        self._data = data[:whole]
        self._records = np.frombuffer(self._data, _RECORD)
        self.header: Any = self._read_header(path)
        if self.header is not None:
            self.rank = int(self.header["rank"])
            self.clock = str(self.header["clock"])
            self.clocks = self.of_type(_CLOCK)

    def of_type(self, number: int) -> np.ndarray:
        return self._records[self._records["type"] == number]

    def texts(self, number: int) -> dict[int, str]:
        """The texts of a type by id; their parts come one after the other."""
        parts: dict[int, bytearray] = {}
        for index in np.flatnonzero(self._records["type"] == number):
            at = int(index) * _RECORD.itemsize
            length = self._data[at + 1]
            key = int.from_bytes(self._data[at + 4 : at + 8], "little")
            parts.setdefault(key, bytearray()).extend(
                self._data[at + 8 : at + 8 + min(length, _TEXT_BYTES)]
            )
        return {k: v.decode(errors="replace") for k, v in parts.items()}

    def _read_header(self, path: str) -> dict[str, Any] | None:
        texts = self.texts(_HEADER)
        if not len(self._records):
            return None  # killed before it had begun
        try:
            header: dict[str, Any] = json.loads(texts[0])
            version = header["version"]
            for name in ("rank", "size", "pid", "host", "clock"):
                _ = header[name]
        except (LookupError, TypeError, ValueError):
            if (self._records["type"] == _HEADER).all():
                return None  # killed in the middle of it
            raise RecordingError(f"{path!r} must be a timeline.") from None
        if version != VERSION:
            raise RecordingError(
                f"{path!r} must be a timeline of version {VERSION}. "
                f"Received: version {version!r}."
            )
        return header

    def recording(self, clocks: _Clocks) -> RankRecording:
        names = self.texts(_NAME)
        size = max(names, default=-1) + 1
        clock = clocks.of(self.clock)
        calls, phases, steps = self._calls(), self._phases(), self._steps()
        calls["name"][calls["name"] >= size] = size  # its record was dropped
        times = [calls[n] for n in CALL.names or () if n.endswith("_ns")]
        for column in times[:-1]:  # the last is a duration
            column[column != 0] += clock.offsets(column[column != 0])
        for array in (phases, steps):
            for name in ("begin_ns", "end_ns"):
                array[name] += clock.offsets(array[name])
        return RankRecording(
            rank=self.rank,
            host=str(self.header["host"]),
            pid=int(self.header["pid"]),
            clock_offset_ns=int(
                clock.offsets(np.array([self.header.get("monotonic_ns", 0)]))[0]
            ),
            clock_error_ns=clock.error_ns,
            num_dropped=int(self.of_type(_DROPPED)["number"].sum()),
            settings={
                str(k): str(v)
                for k, v in self.header.get("settings", {}).items()
            },
            names=[names.get(i, "(unknown)") for i in range(size)]
            + ["(unknown)"],
            calls=calls,
            phases=phases,
            steps=steps,
        )

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
        int(each.header.get("unix_ns", 0))
        - int(each.header.get("monotonic_ns", 0))
        for each in (file, first)
    )
    reading["time_ns"] = int(file.header.get("monotonic_ns", 0))
    reading["other_ns"] = here - there
    reading["num_bytes"] = _WALL_ERROR_NS
    return reading
