"""The figures of the report, on recordings small enough to check by hand."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_recordings import MS, Job, slow

from hvd_keras._observe import tracks
from hvd_keras._observe.analysis import Pause, analyze
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
    table["number"] = np.arange(len(calls)) + 1
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
    assert (last.mean_ns / MS).tolist() == [0, 25]


def test_lateness_over_time() -> None:
    """Each part of the heat map has two steps in the mean."""
    begun = [1000.0, 1100.0, 1200.0, 1300.0, 1400.0, 2460.0]
    late = [10.0, 30.0, 10.0, 40.0, 60.0, 40.0]
    record = Recording([rank_of(rank, [], []) for rank in range(2)], 2)
    for rank in range(2):
        calls: list[Call] = [
            (i + 1, "x", at + rank * more, at + 70, at + 80)
            for i, (at, more) in enumerate(zip(begun, late, strict=True))
        ]
        steps = [(at, at + 90) for at in begun]
        record.ranks[rank] = rank_of(rank, calls, steps)
    for has_steps in (True, False):
        heat = analyze(record).heat
        assert (heat.edges_ns / MS).tolist() == [0, 500, 1000, 1500]
        expected = np.array([[0, np.nan, 0], [30, np.nan, 40]]) * MS
        np.testing.assert_array_equal(heat.late_ns, expected)
        if has_steps:
            np.testing.assert_allclose(
                analyze(record).last.mean_ns / MS, [0, 190 / 6]
            )
        for one in record.ranks:
            one.steps = one.steps[:0]
    for one in record.ranks:
        one.calls = one.calls[:1]
    found = analyze(record)
    assert (found.heat.late_ns / MS).tolist() == [[0], [10]]
    assert (found.last.mean_ns / MS).tolist() == [0, 10]


def test_a_late_host_is_late_against_the_others() -> None:
    late = [2.0 * (rank >= 4) for rank in range(8)]
    job = Job(size=8, ranks_per_host=4, input_ms=lambda rank, _: late[rank])
    rows = collect(job.record()).rows
    np.testing.assert_array_equal(rows["late_ns"], 2 * MS)
    np.testing.assert_array_equal(rows["last_ns"] - rows["first_ns"], 2 * MS)


@pytest.mark.parametrize(
    ("hosts", "errors", "expected"),
    [
        ("aaa", [1, 5, 9], 0),
        ("aab", [1, 5, 9], 14),
        ("abc", [1, 5, 9], 14),
        ("abc", [0, 0, 0], 0),
    ],
)
def test_the_clocks_of_two_hosts_may_be_wrong_in_either_way(
    hosts: str, errors: list[int], expected: int
) -> None:
    record = Job(size=3).record()
    for one, host, error in zip(record.ranks, hosts, errors, strict=True):
        one.host, one.clock_error_ns = host, error
    assert analyze(record).clock_error_ns == expected


@pytest.mark.parametrize(("error_ms", "num_told"), [(24, 2), (25, 0)])
def test_a_rank_is_late_by_more_than_the_clocks_are_wrong(
    error_ms: int, num_told: int
) -> None:
    record = two_ranks()
    record.ranks[1].host = "b"
    record.ranks[1].clock_error_ns = error_ms * MS
    last = analyze(record).last
    assert last.times_last.tolist() == [0, num_told]
    assert last.num_close == 2 - num_told


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
    record = Recording([first, second], 2)
    (found,) = analyze(record).unanswered
    assert (found.name, found.waiting, found.missing) == ("y", [0], [1])
    assert found.waited_ns == 2998 * MS
    record.size = 3  # the record of a rank is missing: it may have called
    assert analyze(record).unanswered == []
    record.size = 2
    first.calls["process_set"][1] = 1  # ranks 0 and 2, perhaps
    assert analyze(record).unanswered == []


def test_a_call_that_was_answered_is_not_missing() -> None:
    alone: Call = (1, "alone", 1.0, 2.0, 5000.0)
    not_sent: Call = (2, "joined", 0, 0, 0)
    record = Recording([rank_of(0, [alone], []), rank_of(1, [not_sent], [])], 2)
    assert analyze(record).unanswered == []


def test_a_rank_that_does_as_before_is_not_to_blame() -> None:
    """Rank 0 goes on as it did; rank 1 makes other calls, and waits longer."""
    before: list[list[Call]] = [
        [
            (i + 1, names[i % 2], at, at + 1, at + 2)
            for i, at in enumerate(np.arange(1.0, 50.0, 10.0))
        ]
        for names in ("xy", "uw")
    ]
    first = rank_of(0, [*before[0], (0, "y", 3000.0, 0, 6000.0)], [])
    others: list[Call] = [
        (0, "v", 3000.0, 0, 5000.0),
        (0, "z", 60.0, 0, 7000.0),
    ]
    second = rank_of(1, [*before[1], *others], [])
    found = analyze(Recording([first, second], 2)).unanswered
    assert [one.name for one in found] == ["y", "z", "v"]
    assert [one.missing for one in found] == [[1], [0], [0]]


@pytest.mark.parametrize(
    ("at", "overlap"), [(-5, False), (-4, True), (9, True), (10, False)]
)
def test_pauses_overlap_if_they_share_time(at: int, overlap: bool) -> None:
    one, other = Pause(0, 10, 0), Pause(1, 5, at)
    assert one.overlaps(other) is other.overlaps(one) is overlap


@pytest.mark.parametrize(
    ("running_ms", "expected"),
    [
        ([1500.0] * 5, []),
        ([1000.0, 1000.0, 2900.0, 25_000.0, 25_000.0], []),
        ([1000.0, 1000.0, 1500.0, 2900.0, 16_000.0], [16_000]),
    ],
)
def test_a_large_collective_is_a_pause_if_others_take_less(
    running_ms: list[float], expected: list[int]
) -> None:
    calls: list[Call] = []
    steps, at, large = [], 0.0, []
    for number in range(40):
        is_large = number >= 35
        large.append(is_large)
        lasts = running_ms[number - 35] if is_large else 2.0
        calls.append((number + 1, "x", at, at, at + lasts))
        steps.append((at, at + lasts + 3.0))
        at += lasts + 5.0
    record = Recording([rank_of(0, calls, steps), rank_of(1, calls, steps)], 2)
    for one in record.ranks:
        one.calls["num_bytes"][large] = 1 << 30
    found = analyze(record).pauses
    assert [pause.lasted_ns / MS for pause in found] == expected
    assert all(pause.rank == -1 for pause in found)


def test_without_steps_a_recording_is_one_window() -> None:
    calls: list[Call] = [(1, "x", 10.0, 11.0, 20.0), (2, "x", 40.0, 40.0, 50.0)]
    found = analyze(Recording([rank_of(0, calls, [])], 1))
    assert not found.time.has_steps
    assert (found.mean_parts_ns[0] / MS).tolist() == [20, 0, 20, 0, 0]
    assert found.last.unit == "collectives"


@pytest.mark.filterwarnings("error")  # a report prints none
def test_an_empty_rank_is_no_error() -> None:
    found = analyze(Recording([rank_of(0, [], [])], 2))
    assert np.isnan(
        [found.efficiency, found.step_ns, found.share("wait")]
    ).all()
    assert found.speeds == []
    assert found.heat.edges_ns.tolist() == [0]
    assert found.heat.late_ns.shape == (1, 0)


def test_the_simulated_job_is_possible() -> None:
    record = Job(size=8, ranks_per_host=4, input_ms=slow(3, 7.0)).record()
    calls = np.stack([one.calls for one in record.ranks])
    assert (calls["ended_ns"] > calls["enqueued_ns"].max(0)).all()
    assert (calls["begun_ns"] >= calls["negotiated_ns"]).all()
    assert (calls["begun_ns"][:, 1:] >= calls["ended_ns"][:, :-1]).all()
