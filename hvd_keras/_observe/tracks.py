"""From a recording to what a trace viewer shows: tracks, arrows, counters."""

from __future__ import annotations

import dataclasses
import heapq
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from hvd_keras._observe import recording
from hvd_keras._observe.collectives import collect
from hvd_keras._observe.recording import RankRecording, Recording

_WAIT, _NEGOTIATE, _QUEUE = "wait for the last rank", "negotiate", "queue"
_RUN = "collectives"

# A collective of the job: its process set and its number there.
Collective = tuple[int, int]


@dataclasses.dataclass
class Slice:
    """Something with a beginning and an end."""

    begin_ns: int
    end_ns: int
    name: str
    arguments: dict[str, str | int] = dataclasses.field(default_factory=dict)
    flow: int = 0  # slices of the same number are connected; 0: none


@dataclasses.dataclass
class Track:
    """Slices one after the other, or one inside another."""

    name: str
    slices: list[Slice]  # in order; an outer one before those inside


@dataclasses.dataclass
class Counter:
    """A number that changes with time."""

    name: str
    unit: str
    times_ns: np.ndarray
    values: np.ndarray


@dataclasses.dataclass
class RankTracks:
    """What is shown of one rank."""

    rank: int
    title: str
    tracks: list[Track]
    counters: list[Counter]
    marks_ns: list[int]  # when the rank heard what to run, if asked for


def of(job: Recording) -> Iterator[RankTracks]:
    """Yields the tracks of each rank."""
    arrivals = _last_arrivals(job)
    for rank in job.ranks:
        yield _Rank(rank, arrivals).tracks()


def flow_of(collective: Collective) -> int:
    """A number, not 0, of a collective of the job."""
    process_set, number = collective
    return (process_set + 1) << 40 | number


def _last_arrivals(job: Recording) -> dict[tuple[int, int, str], int]:
    """When the last rank had enqueued a call.

    Returns:
        The time by process set, collective id and name.
    """
    last: dict[tuple[int, int, str], int] = {}
    for rank in job.ranks:
        for call in rank.calls[rank.calls["collective_id"] != 0]:
            key = _key_of(rank, call)
            time = int(call["enqueued_ns"])
            last[key] = max(time, last.get(key, time))
    return last


def early_ends(job: Recording) -> list[tuple[int, str, int]]:
    """Allreduces that ended on a rank before the last rank had come.

    There are none but for an error of a clock.

    Returns:
        For each the rank, the name and by how many nanoseconds.
    """
    found = collect(job)
    calls = found.calls
    early = found.rows["last_ns"][calls["collective"]] - calls["ended_ns"]
    is_allreduce = calls["kind"] == recording.KINDS.index("allreduce")
    some = is_allreduce & (early > 0)
    return [
        (
            job.ranks[call["rank_index"]].rank,
            found.names[call["name_id"]],
            int(by),
        )
        for call, by in zip(calls[some], early[some], strict=True)
    ]


def _key_of(rank: RankRecording, call: Any) -> tuple[int, int, str]:
    return (
        int(call["process_set"]),
        int(call["collective_id"]),
        rank.names[call["name"]],
    )


class _Rank:
    """Makes the tracks of one rank."""

    def __init__(
        self, rank: RankRecording, arrivals: dict[tuple[int, int, str], int]
    ) -> None:
        self._rank = rank
        self._arrivals = arrivals
        self._end_ns = self._last_time()

    def tracks(self) -> RankTracks:
        rank = self._rank
        title = f"rank {rank.rank} (host {rank.host}, pid {rank.pid}"
        if rank.clock_error_ns:
            title += f", clock within {rank.clock_error_ns / 1e3:.0f} us"
        tracks = [
            *self._step_tracks(),
            *self._call_tracks(),
            *self._collective_tracks(),
            *self._phase_tracks(),
        ]
        return RankTracks(
            rank.rank,
            title + ")",
            tracks,
            [self._pending(), self._in_flight()],
            self._marks(),
        )

    def _last_time(self) -> int:
        calls = self._rank.calls
        arrays = [calls["enqueued_ns"], calls["negotiated_ns"]]
        arrays += [calls["begun_ns"], calls["ended_ns"]]
        arrays += [self._rank.phases["end_ns"], self._rank.steps["end_ns"]]
        return max((int(each.max()) for each in arrays if len(each)), default=0)

    # ---- Steps ----

    def _step_tracks(self) -> Iterator[Track]:
        steps = np.sort(self._rank.steps, order="begin_ns")
        if not len(steps):
            return
        slices = []
        # An epoch's steps follow each other; another `fit` begins at 0 again.
        is_new = np.diff(steps["epoch"], prepend=steps["epoch"][0] - 1) != 0
        is_new[1:] |= np.diff(steps["step"]) <= 0
        for epoch in np.split(steps, np.flatnonzero(is_new))[1:]:
            slices.append(
                Slice(
                    int(epoch["begin_ns"][0]),
                    int(epoch["end_ns"].max()),
                    f"epoch {epoch['epoch'][0]}",
                    {"steps": len(epoch)},
                )
            )
            for step in epoch:
                begin, end = int(step["begin_ns"]), int(step["end_ns"])
                slices.append(Slice(begin, end, f"step {step['step']}"))
        yield Track("steps", slices)

    # ---- Calls ----

    def _call_tracks(self) -> Iterator[Track]:
        parts: dict[str, list[Slice]] = {_WAIT: [], _NEGOTIATE: [], _QUEUE: []}
        for call in self._rank.calls:
            key = _key_of(self._rank, call)
            begin = int(call["enqueued_ns"])
            heard = int(call["negotiated_ns"])
            until = heard or int(call["ended_ns"]) or self._end_ns
            # A call that nobody answered waits for a rank until its end.
            last = self._arrivals.get(key, until) if heard else until
            last = min(max(last, begin), until)
            arguments = self._arguments_of(call)
            name = key[2]
            if last > begin:
                parts[_WAIT].append(Slice(begin, last, name, arguments))
            if until > last:
                parts[_NEGOTIATE].append(Slice(last, until, name, arguments))
            run = int(call["begun_ns"])
            if heard and run > heard:
                parts[_QUEUE].append(Slice(heard, run, name, arguments))
        for name, slices in parts.items():
            yield from _in_lanes(name, slices)

    def _arguments_of(self, call: Any) -> dict[str, str | int]:
        kind = recording.KINDS[call["kind"]]
        found: dict[str, str | int] = {
            "kind": kind,
            "collective_id": int(call["collective_id"]),
            "process_set": int(call["process_set"]),
            "bytes": int(call["num_bytes"]),
            "tensors": int(call["num_tensors"]),
            "device": "gpu" if call["on_gpu"] else "cpu",
            "state": recording.STATES[call["state"]],
        }
        if kind in ("allreduce", "reducescatter"):
            found["op"] = recording.OPS[call["op"]]
        if call["num_tensors"]:
            found["dtype"] = recording.DTYPES[call["dtype"]]
        if call["last_rank"] >= 0:
            found["last_rank"] = int(call["last_rank"])
            found["late_us"] = int(call["late_ns"]) // 1000
        return found

    # ---- Collectives ----

    def _collective_tracks(self) -> Iterator[Track]:
        calls = self._rank.calls
        slices = []
        for collective, members in _by_collective(calls[calls["begun_ns"] > 0]):
            first = members[0]
            name = self._rank.names[first["name"]]
            if len(members) > 1:
                name += f" and {len(members) - 1} more"
            arguments = self._arguments_of(first)
            arguments["bytes"] = int(members["num_bytes"].sum())
            arguments["tensors"] = int(members["num_tensors"].sum())
            arguments["calls"] = len(members)
            end = int(members["ended_ns"].max()) or self._end_ns
            slices.append(
                Slice(
                    int(first["begun_ns"]),
                    end,
                    f"{arguments['kind']} {name}",
                    arguments,
                    flow_of(collective),
                )
            )
        yield from _in_lanes(_RUN, slices)

    def _phase_tracks(self) -> Iterator[Track]:
        phases = self._rank.phases
        for kind, name in enumerate(recording.PHASES):
            slices = [
                Slice(
                    int(phase["begin_ns"]),
                    int(phase["end_ns"]),
                    name,
                    {
                        "collective_id": int(phase["collective_id"]),
                        "process_set": int(phase["process_set"]),
                        "bytes": int(phase["num_bytes"]),
                    },
                )
                for phase in phases[phases["kind"] == kind]
            ]
            yield from _in_lanes(name, slices)

    # ---- Counters, marks ----

    def _pending(self) -> Counter:
        calls = self._rank.calls
        ended = calls["ended_ns"][calls["ended_ns"] > 0]
        ones = np.ones(len(calls), "i8")
        return _sum_of(
            "pending requests",
            "count",
            np.concatenate([calls["enqueued_ns"], ended]),
            np.concatenate([ones, -ones[: len(ended)]]),
        )

    def _in_flight(self) -> Counter:
        calls = self._rank.calls
        begun = calls[calls["begun_ns"] > 0]
        ended = begun[begun["ended_ns"] > 0]
        return _sum_of(
            "bytes in flight",
            "bytes",
            np.concatenate([begun["begun_ns"], ended["ended_ns"]]),
            np.concatenate(
                [
                    begun["num_bytes"].astype("i8"),
                    -ended["num_bytes"].astype("i8"),
                ]
            ),
        )

    def _marks(self) -> list[int]:
        if self._rank.settings.get("mark_cycles") != "1":
            return []
        heard = self._rank.calls["negotiated_ns"]
        return [int(time) for time in np.unique(heard[heard > 0])]


def _by_collective(
    calls: np.ndarray,
) -> Iterator[tuple[Collective, np.ndarray]]:
    """Yields the calls that ran together."""
    calls = np.sort(calls, order=["process_set", "collective_id", "number"])
    is_new = np.ones(len(calls), "?")
    for name in ("process_set", "collective_id"):
        is_new[1:] &= calls[name][1:] == calls[name][:-1]
    is_new[1:] = ~is_new[1:]
    for members in np.split(calls, np.flatnonzero(is_new)[1:]):
        if len(members):
            first = members[0]
            key = int(first["process_set"]), int(first["collective_id"])
            yield key, members


def _in_lanes(name: str, slices: Iterable[Slice]) -> Iterator[Track]:
    """Spreads slices over as many tracks as keep them apart."""
    lanes: list[list[Slice]] = []
    free: list[tuple[int, int]] = []  # when a lane is, and which
    for one in sorted(slices, key=lambda each: each.begin_ns):
        if free and free[0][0] <= one.begin_ns:
            _, lane = heapq.heappop(free)
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(one)
        heapq.heappush(free, (one.end_ns, lane))
    for lane_slices in lanes:
        yield Track(name, lane_slices)


def _sum_of(
    name: str, unit: str, times: np.ndarray, changes: np.ndarray
) -> Counter:
    """A counter by its changes. Those of one moment count together."""
    moments, index = np.unique(times, return_inverse=True)
    totals = np.zeros(len(moments), "i8")
    np.add.at(totals, index, changes)
    return Counter(name, unit, moments, np.cumsum(totals))
