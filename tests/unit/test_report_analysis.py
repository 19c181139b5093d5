"""The figures of the report, on recordings small enough to check by hand."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_recordings import MS, Job, slow

from hvd_keras._observe import tracks
from hvd_keras._observe.analysis import analyze
from hvd_keras._observe.collectives import collect
from hvd_keras._observe.intervals import Intervals, within_both
from hvd_keras._observe.recording import (
    CALL,
    PHASE,
    STATES,
    STEP,
    RankRecording,
    Recording,
)
from hvd_keras._observe.time_parts import PARTS, blocking

Call = tuple[int, str, float, float, float]  # id, name, submitted, begun, ended
DONE = STATES.index("done")


def rank_of(
    rank: int,
    calls: list[Call],
    steps: list[tuple[float, float]],
    num_bytes: int = 1000,
) -> RankRecording:
    """A rank's record; times in ms."""
    names = list(dict.fromkeys(call[1] for call in calls))
    table = np.zeros(len(calls), CALL)
    for row, (number, name, submitted, begun, ended) in zip(
        table, calls, strict=True
    ):
        row["collective_id"], row["name"] = number, names.index(name)
        row["enqueued_ns"] = submitted * MS
        row["begun_ns"], row["ended_ns"] = begun * MS, ended * MS
        row["negotiated_ns"] = begun * MS
        row["state"] = DONE if ended else STATES.index("waiting")
        row["num_bytes"], row["num_tensors"] = num_bytes, 1
    windows = np.array(
        [(i, 0, a * MS, b * MS) for i, (a, b) in enumerate(steps)], STEP
    )
    return RankRecording(
        *(rank, "a", 100 + rank, 0, 0, 0, {}, names, table),
        *(np.zeros(0, PHASE), windows),
    )


def two_ranks() -> Recording:
    """Two buckets a step. Rank 1 makes the second 25 ms after rank 0."""
    steps = [(0.0, 100.0), (110.0, 210.0)]
    first: list[Call] = []
    second: list[Call] = []
    for step, (at, _) in enumerate(steps):
        for name, sent, late, begun in (("A", 40, 50, 50), ("B", 55, 80, 80)):
            number = 1 + 2 * step + (name == "B")
            when = (at + begun, at + begun + 10)
            first.append((number, name, at + sent, *when))
            second.append((number, name, at + late, *when))
    return Recording([rank_of(0, first, steps), rank_of(1, second, steps)], 2)


def test_intervals_count_what_overlaps_once() -> None:
    one = Intervals(np.array([5, 0, 8]), np.array([7, 3, 4]))  # one is empty
    other = Intervals(np.array([2]), np.array([6]))
    assert (one | other).begins.tolist() == [0]
    begins, ends = np.array([0, 1, 6, -5]), np.array([10, 6, 7, -1])
    assert one.within(begins, ends).tolist() == [5, 3, 1, 0]
    assert within_both(one, other, begins, ends).tolist() == [2, 2, 0, 0]


def test_parts_of_a_step_are_exact() -> None:
    found = analyze(two_ranks())
    # Rank 0: in flight from 40 to 90, and nothing new is made after 55. Data
    # moves from 50 to 60 and from 80 to 90.
    parts = dict(zip(PARTS, found.mean_parts_ns[0] / MS, strict=True))
    assert parts == {
        "compute": 50.0,
        "overlapped": 15.0,
        "transfer": 15.0,
        "wait": 20.0,
        "input": 10.0,  # after the first step; unknown after the last
    }
    # Rank 1 never waits.
    assert (found.mean_parts_ns[1] / MS).tolist() == [80, 10, 10, 0, 10]
    assert found.efficiency == pytest.approx(1 - 45 / 220)
    assert found.num_steps == 2


def test_the_input_of_executions_of_several_steps_is_known() -> None:
    record = two_ranks()
    for one in record.ranks:
        one.steps["step"] = 4 * one.steps["step"] + 4
    found = analyze(record)
    assert (found.part("input") / MS).tolist() == [10.0, 10.0]


def test_the_parts_add_up_to_the_time_of_the_steps() -> None:
    job = Job(size=4, num_steps=7, input_ms=slow(2, 9.0))
    found = analyze(job.record())
    for window, parts in zip(found.time.windows, found.time.parts, strict=True):
        length = window["end_ns"] - window["begin_ns"]
        np.testing.assert_array_equal(parts.sum(1), length)
        assert (parts >= 0).all()


def test_the_last_rank_of_each_step_is_that_of_its_worst_collective() -> None:
    last = analyze(two_ranks()).last
    assert (last.unit, last.num_units, last.num_close) == ("steps", 2, 0)
    assert last.times_last.tolist() == [0, 2]
    assert (last.late_ns / MS).tolist() == [0, 50]  # 25 a step: that of B


def test_a_late_host_is_late_against_the_others() -> None:
    late = [2.0 * (rank >= 4) for rank in range(8)]
    job = Job(size=8, ranks_per_host=4, input_ms=lambda rank, _: late[rank])
    rows = collect(job.record()).rows
    np.testing.assert_array_equal(rows["late_ns"], 2 * MS)
    np.testing.assert_array_equal(rows["last_ns"] - rows["first_ns"], 2 * MS)


def test_what_the_clocks_cannot_tell_counts_for_no_rank() -> None:
    job = Job(size=2, ranks_per_host=1, input_ms=slow(1, 1.5))
    job.clock_error_ns = MS
    last = analyze(job.record()).last
    assert (last.num_units, last.num_close) == (10, 10)
    assert last.times_last.tolist() == [0, 0]


@pytest.mark.parametrize("waits", [True, False])
def test_a_call_blocks_if_what_follows_waits_for_it(waits: bool) -> None:
    calls: list[Call] = []
    at = 0.0
    for i in range(20):
        lasts = 1.0 + i % 3
        calls.append((i + 1, "x", at, at, at + lasts))
        at += lasts + 5.0 if waits else 8.0
        if i == 3:
            at += 300.0  # a step that was compiled again
    record = Recording([rank_of(0, calls, [])], 1)
    own = collect(record).calls
    found = blocking(own, np.zeros(len(own), np.int64))
    assert found.all() if waits else not found.any()


def test_a_clock_that_is_wrong_makes_allreduces_end_early() -> None:
    record = two_ranks()
    assert tracks.early_ends(record) == []
    # By this clock, rank 1 makes each call 10 ms after it has ended.
    record.ranks[1].calls["enqueued_ns"] += 20 * MS
    early = tracks.early_ends(record)
    assert [one for one in early if one[0] == 0] == [
        (0, name, 10 * MS) for name in "ABAB"
    ]


def test_calls_that_run_together_are_one_collective() -> None:
    calls: list[Call] = [
        (1, "x", 1.0, 4.0, 6.0),
        (1, "y", 2.0, 4.0, 6.0),
        (2, "x", 7.0, 7.0, 8.0),
    ]
    found = analyze(Recording([rank_of(0, calls, [(0.0, 10.0)])], 1))
    assert found.collectives.rows["num_calls"].tolist() == [2, 1]
    assert found.collectives.rows["num_bytes"].tolist() == [2000, 1000]
    assert found.collectives.rows["first_ns"].tolist() == [2 * MS, 7 * MS]
    fusion = found.fusion
    assert (fusion.collectives_a_step, fusion.tensors_a_collective) == (2, 1.5)
    assert dict(zip(fusion.bounds, fusion.counts, strict=True)) == {
        (1, 1): 1,
        (2, 2): 1,
    }
    x, y = found.tensors
    assert (x.name, x.running_ns_a_step / MS) == ("x", 2.0)  # half of 2, and 1
    assert (y.name, y.running_ns_a_step / MS) == ("y", 1.0)


def test_speed_is_bytes_by_the_time_from_the_last_begin() -> None:
    (speed,) = analyze(two_ranks()).speeds
    assert speed.num_collectives == 4
    assert speed.median == pytest.approx(1000 / 10e-3)


def test_a_call_that_a_rank_never_made_is_found() -> None:
    some: Call = (1, "x", 1.0, 2.0, 3.0)
    lost: Call = (0, "y", 4.0, 0, 0)
    later: Call = (2, "z", 3000.0, 3001.0, 3002.0)
    first = rank_of(0, [some, lost, later], [(0.0, 10.0)])
    second = rank_of(1, [some, later], [(0.0, 10.0)])
    (found,) = analyze(Recording([first, second], 2)).unanswered
    assert (found.name, found.waiting, found.missing) == ("y", [0], [1])
    assert found.waited_ns == 2998 * MS


def test_without_steps_a_recording_is_one_window() -> None:
    calls: list[Call] = [(1, "x", 10.0, 11.0, 20.0), (2, "x", 40.0, 40.0, 50.0)]
    found = analyze(Recording([rank_of(0, calls, [])], 1))
    assert not found.time.has_steps
    assert (found.mean_parts_ns[0] / MS).tolist() == [20, 0, 20, 0, 0]
    assert found.last.unit == "collectives"


def test_an_empty_rank_is_no_error() -> None:
    found = analyze(Recording([rank_of(0, [], [])], 2))
    assert np.isnan(found.efficiency)
    assert found.speeds == []


def test_the_simulated_job_is_possible() -> None:
    record = Job(size=8, ranks_per_host=4, input_ms=slow(3, 7.0)).record()
    calls = np.stack([one.calls for one in record.ranks])
    assert (calls["ended_ns"] > calls["enqueued_ns"].max(0)).all()
    assert (calls["begun_ns"] >= calls["negotiated_ns"]).all()
    assert (calls["begun_ns"][:, 1:] >= calls["ended_ns"][:, :-1]).all()
