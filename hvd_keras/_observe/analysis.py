"""What a recording says about a job. docs/report.md defines each figure."""

from __future__ import annotations

import dataclasses

import numpy as np

from hvd_keras._observe.collectives import (
    Collectives,
    all_calls,
    collect,
    shared,
)
from hvd_keras._observe.history import next_calls
from hvd_keras._observe.intervals import Array
from hvd_keras._observe.recording import Recording
from hvd_keras._observe.time_parts import PARTS, TimeParts, split_time
from hvd_keras._observe.traffic import (
    Fusion,
    SpeedOfSize,
    TensorCost,
    fusion_of,
    mean_speed,
    seconds_of_hosts,
    speeds_of_sizes,
    tensor_costs,
    wire_shares,
)
from hvd_keras._records.links import slow_sender

_MAX_BINS = 100  # of the heat map
_PAUSE_NS = 1_000_000_000
_PAUSE_STEPS = 10  # a pause is as long as so many steps
_RECENT_CALLS = 4096  # that tell what a rank usually calls


@dataclasses.dataclass(frozen=True)
class LastRanks:
    """Who came last: of each step the call that lost most time counts."""

    unit: str  # "steps"; "collectives" if no step was recorded
    num_units: int  # those that all ranks were seen in
    num_close: (
        int  # of them, those in which the clocks cannot tell who was last
    )
    # For each rank, in the order of `Recording.ranks`.
    times_last: Array
    late_ns: Array  # in those units together
    mean_ns: Array  # after the first rank, in the mean of all units


@dataclasses.dataclass(frozen=True)
class HeatMap:
    """How late each rank came, over time."""

    edges_ns: Array  # bins + 1, from the first arrival
    late_ns: Array  # [ranks, bins], the mean; nan without a collective


@dataclasses.dataclass(frozen=True)
class Pause:
    """A rank that stood still for once."""

    rank: int  # -1: in the middle of a collective, which one is not known
    lasted_ns: int
    at_ns: int  # from the first arrival

    def overlaps(self, other: Pause) -> bool:
        return (
            self.at_ns < other.at_ns + other.lasted_ns
            and other.at_ns < self.at_ns + self.lasted_ns
        )


@dataclasses.dataclass(frozen=True)
class Unanswered:
    """A call that some ranks made, and others never did."""

    name: str
    waiting: list[int]
    missing: list[int]
    waited_ns: int


@dataclasses.dataclass(frozen=True)
class Analysis:
    """A recording, and what it says. Ranks are in the recording's order."""

    recording: Recording
    collectives: Collectives
    time: TimeParts
    mean_parts_ns: Array  # [ranks, PARTS]: the mean step
    step_ns: float  # the median step of all ranks; nan without steps
    num_steps: int  # of the rank with the most
    efficiency: float  # in [0, 1]; nan without steps
    clock_error_ns: int  # between two hosts, at most
    last: LastRanks
    speeds: list[SpeedOfSize]
    tensors: list[TensorCost]  # the costliest first
    fusion: Fusion
    heat: HeatMap
    pauses: list[Pause]  # the longest first
    unanswered: list[Unanswered]  # the likely cause first
    # Host -> the share of the time of its collectives in which its ranks wait
    # for other hosts.
    wire_share: dict[str, float]
    slow_sender: str | None  # a host; None: none is slower than the others
    speed: float  # of all collectives that move data: bytes a second, or nan

    def part(self, name: str) -> Array:
        """The mean ns a step of one of PARTS, for each rank."""
        column: Array = self.mean_parts_ns[:, PARTS.index(name)]
        return column

    def share(self, name: str) -> float:
        """A part's share of the time of all ranks; nan without steps."""
        total = self.mean_parts_ns.sum()
        return float(self.part(name).sum() / total) if total else float("nan")


def analyze(recording: Recording) -> Analysis:
    """Returns what a recording says.

    Raises:
        ValueError: It holds no rank.
    """
    if not recording.ranks:
        raise ValueError("`recording` must hold a rank. Received: none.")
    collectives = collect(recording)
    time = split_time(recording, collectives)
    parts = time.mean_parts()
    total = parts.sum()
    lost = parts[:, [PARTS.index("transfer"), PARTS.index("wait")]].sum()
    lengths = np.concatenate(
        [one["end_ns"] - one["begin_ns"] for one in time.windows]
    )
    step_ns = float(np.median(lengths)) if len(lengths) else float("nan")
    num_steps = max(len(one) for one in time.windows)
    clock_error = _clock_error(recording)
    return Analysis(
        recording=recording,
        collectives=collectives,
        time=time,
        mean_parts_ns=parts,
        step_ns=step_ns,
        num_steps=num_steps,
        efficiency=float(1 - lost / total) if total else float("nan"),
        clock_error_ns=clock_error,
        last=_last_ranks(recording, collectives, time, clock_error),
        speeds=speeds_of_sizes(collectives),
        tensors=tensor_costs(collectives, time, len(recording.ranks)),
        fusion=fusion_of(collectives, num_steps),
        heat=_heat_map(
            collectives, len(recording.ranks), num_steps * time.has_steps
        ),
        pauses=_pauses(collectives, time, step_ns),
        unanswered=_unanswered(recording),
        wire_share=wire_shares(recording, collectives),
        slow_sender=slow_sender(seconds_of_hosts(recording, collectives)),
        speed=mean_speed(collectives),
    )


def _clock_error(recording: Recording) -> int:
    """How far the clocks of two hosts may be apart."""
    hosts: dict[str, int] = {}
    for one in recording.ranks:
        known = hosts.get(one.host, 0)
        hosts[one.host] = max(known, one.clock_error_ns)
    return sum(sorted(hosts.values())[-2:]) if len(hosts) > 1 else 0


def _last_ranks(
    recording: Recording,
    collectives: Collectives,
    time: TimeParts,
    clock_error: int,
) -> LastRanks:
    some = shared(collectives)
    if time.has_steps:
        step, has_step = _steps_of(collectives, time)
        some = some[has_step[some]]
        # The worst of each step comes last, and stays.
        late = collectives.rows["late_ns"][some]
        some = some[np.lexsort((late, step[some]))]
        is_worst = np.ones(len(some), bool)
        is_worst[:-1] = step[some][1:] != step[some][:-1]
        some = some[is_worst]
    rows = collectives.rows[some]
    is_told = rows["late_ns"] > clock_error
    ranks = np.array([one.rank for one in recording.ranks])
    place = np.searchsorted(ranks, rows["last_rank"][is_told])
    late = rows["late_ns"][is_told]
    return LastRanks(
        unit="steps" if time.has_steps else "collectives",
        num_units=len(rows),
        num_close=int(len(rows) - is_told.sum()),
        times_last=np.bincount(place, minlength=len(ranks)),
        late_ns=np.bincount(place, late, len(ranks)),
        mean_ns=_mean_lateness(collectives, some, len(ranks)),
    )


def _arrivals_of(collectives: Collectives, some: Array) -> tuple[Array, Array]:
    """The arrivals to some collectives; how long after the first each was."""
    is_some = np.zeros(len(collectives.rows), bool)
    is_some[some] = True
    arrivals = collectives.arrivals[is_some[collectives.arrivals["collective"]]]
    first = collectives.rows["first_ns"][arrivals["collective"]]
    return arrivals, arrivals["arrived_ns"] - first


def _mean_lateness(
    collectives: Collectives, some: Array, num_ranks: int
) -> Array:
    arrivals, late = _arrivals_of(collectives, some)
    ranks = arrivals["rank_index"]
    total: Array = np.bincount(ranks, late, num_ranks)
    return total / np.maximum(np.bincount(ranks, minlength=num_ranks), 1)


def _steps_of(collectives: Collectives, time: TimeParts) -> tuple[Array, Array]:
    """Returns the step of each collective, as one number, and if it has one."""
    steps = np.zeros(len(collectives.rows), np.int64)
    found = np.zeros(len(collectives.rows), bool)
    for index, keys in enumerate(time.step_keys()):
        own = collectives.of_rank(index)
        step = time.step_of_call[own]
        place = collectives.calls[own]["collective"][step >= 0]
        steps[place] = keys[step[step >= 0]]
        found[place] = True
    return steps, found


def _heat_map(
    collectives: Collectives, num_ranks: int, num_steps: int
) -> HeatMap:
    some = shared(collectives)
    rows = collectives.rows
    if not len(some):
        return HeatMap(np.zeros(1), np.full((num_ranks, 0), np.nan))
    start, end = rows["first_ns"][some].min(), rows["last_ns"][some].max()
    # Two steps or more a bin: hardly one is empty.
    num_bins = min(_MAX_BINS, max(1, (num_steps or len(some)) // 2))
    edges = np.linspace(0, max(end - start, num_bins), num_bins + 1)
    arrivals, late = _arrivals_of(collectives, some)
    first = arrivals["arrived_ns"] - late
    place = np.searchsorted(edges, first - start, side="right") - 1
    place = np.minimum(place, num_bins - 1)
    cell = arrivals["rank_index"] * num_bins + place
    count = np.bincount(cell, minlength=num_ranks * num_bins)
    total = np.bincount(cell, late, num_ranks * num_bins)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return HeatMap(edges, mean.reshape(num_ranks, num_bins))


def _pauses(
    collectives: Collectives, time: TimeParts, step_ns: float
) -> list[Pause]:
    rows = collectives.rows[shared(collectives)]
    if not len(rows) or not time.has_steps:
        return []
    start = rows["first_ns"].min()
    # Ranks may take seconds to begin, and to compile the first step.
    first_ends = [one["end_ns"][0] for one in time.windows if len(one)]
    rows = rows[rows["first_ns"] >= min(first_ends)]
    least = max(_PAUSE_NS, _PAUSE_STEPS * step_ns)
    nobody = np.full(len(rows), -1)
    running = rows["ended_ns"] - rows["begun_ns"]
    at = rows["first_ns"] - start
    candidates: list[Pause] = []
    for ranks, lasted in (
        (rows["last_rank"], rows["late_ns"]),
        (rows["last_to_begin"], rows["began_late_ns"]),
        (nobody, np.where(running > _PAUSE_STEPS * _usual(rows), running, 0)),
    ):
        candidates += [
            Pause(int(ranks[i]), int(lasted[i]), int(at[i]))
            for i in np.flatnonzero(lasted >= least)
        ]
    found: list[Pause] = []
    for one in sorted(candidates, key=lambda one: -one.lasted_ns):
        # Several collectives may wait for the same pause.
        if not any(one.overlaps(other) for other in found):
            found.append(one)
    return found


def _usual(rows: Array) -> Array:
    """How long collectives of as many bytes as each run: the median."""
    running = rows["ended_ns"] - rows["begun_ns"]
    order = np.lexsort((running, rows["num_bytes"]))
    _, first, place, count = np.unique(
        rows["num_bytes"][order],
        return_index=True,
        return_inverse=True,
        return_counts=True,
    )
    usual = np.zeros(len(rows), np.int64)
    usual[order] = running[order][first + count // 2][place]
    return usual


def _unanswered(recording: Recording) -> list[Unanswered]:
    calls, names = all_calls(recording)
    ranks = {one.rank for one in recording.ranks}
    if len(ranks) < recording.size or not len(calls):
        return []  # a rank without a record may well have called
    end = max(calls["enqueued_ns"].max(), calls["ended_ns"].max())
    open_calls = calls[
        (calls["begun_ns"] == 0)
        & (calls["enqueued_ns"] > 0)
        & (calls["process_set"] == 0)
    ]
    found: list[tuple[bool, Unanswered]] = []
    for name in np.unique(open_calls["name_id"]):
        here = open_calls[open_calls["name_id"] == name]
        waiting = {recording.ranks[i].rank for i in here["rank_index"]}
        until = np.where(here["ended_ns"] > 0, here["ended_ns"], end)
        waited = int((until - here["enqueued_ns"]).max())
        if waiting != ranks and waited >= _PAUSE_NS:
            one = Unanswered(
                names[name], sorted(waiting), sorted(ranks - waiting), waited
            )
            found.append((_is_usual(calls, here[0]), one))
    # If ranks wait for each other, those that do as before are not to blame.
    found.sort(key=lambda pair: (not pair[0], -pair[1].waited_ns))
    return [one for _, one in found]


def _is_usual(calls: Array, call: Array) -> bool:
    """Whether a rank made that call where it had made it before."""
    before = calls[
        (calls["rank_index"] == call["rank_index"])
        & (calls["process_set"] == call["process_set"])
        & (calls["number"] < call["number"])
    ][-_RECENT_CALLS:]
    keys = [(0, str(name)) for name in before["name_id"]]
    return next(next_calls(keys), None) == (0, str(call["name_id"]))
